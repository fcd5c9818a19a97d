#include "backend/backend.h"

#include <utility>

#include <c10/util/Exception.h>

#include "backend/dtype.h"
#include "backend/exchange_pipeline.h"
#include "backend/flight_dump.h"
#include "backend/interpreter.h"
#include "backend/priority.h"
#include "backend/validate.h"

namespace freescale {

Backend::~Backend() { close("the group was destroyed"); }

void Backend::abort() {
  const std::shared_ptr<GroupContext> connected = context();
  if (connected != nullptr) write_flight_dump(environment_, *connected->flight_group());
  close("the group was aborted");
  if (device_reducer_ != nullptr) device_reducer_->abort();
}

void Backend::shutdown() {
  // A program that has its streams wait for a call is done with the call, and expects it to happen.
  const std::shared_ptr<GroupContext> connected = context();
  if (connected != nullptr) connected->wait_for_awaited();
  close("the group was shut down");
  if (device_reducer_ != nullptr) device_reducer_->shutdown();
}

void Backend::close(const std::string& reason) {
  Members members;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    members = std::exchange(members_, {});
    if (members.process == nullptr) return;
    close_reason_ = reason;
    if (members.group != nullptr) last_sequence_ = members.group->last_sequence();
  }
  if (members.group == nullptr) {
    return run_without_interpreter_lock([&] { refuse_to_connect(reason); });
  }
  run_without_interpreter_lock([&] {
    std::string text =
        "freescale: rank " + std::to_string(rank_) + ": " + reason + " while this was in flight";
    // The peers should hear of the cause, not only of what this rank did about it.
    const Status failure = context_->first_failure();
    if (!failure.ok()) text += "; what failed before here: " + failure.message();
    if (!members.process->is_forked_copy()) {
      members.process->engine().close_group(*members.group, text);
    }
    members = {};
  });
}

c10d::ErrorType Backend::getError() {
  const std::shared_ptr<GroupContext> connected = context();
  if (connected == nullptr) return c10d::ErrorType::SUCCESS;
  const Status failure = connected->first_failure();
  if (failure.ok()) return c10d::ErrorType::SUCCESS;
  const bool late = failure.code() == StatusCode::kTimedOut;
  return late ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
}

uint64_t Backend::getSequenceNumberForGroup() {
  std::lock_guard<std::mutex> lock(mutex_);
  return members_.group == nullptr ? last_sequence_ : members_.group->last_sequence();
}

c10::intrusive_ptr<c10d::Backend::Options> Backend::getBackendOptions() {
  return c10::make_intrusive<BackendOptions>(*options_);
}

Backend::Members Backend::usable_members(const CallSite& site) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (members_.process == nullptr) {
    throw_status(Status::cancelled(c10::str(site, close_reason_, " and cannot be used any more")));
  }
  if (members_.process->is_forked_copy()) throw_status(forked_status(site));
  return members_;
}

Call Backend::begin(OpKind op, c10::ScalarType dtype, std::chrono::milliseconds timeout,
                    bool async_op, bool numbered) {
  Call call;
  call.begin = now_ns();
  call.site = {rank_, op, 0};
  Members members = usable_members(call.site);
  if (members.group == nullptr) {
    run_without_interpreter_lock([this] { connect(); });
    members = usable_members(call.site);
  }
  if (numbered) call.site.sequence = members.group->next_sequence();
  call.dtype = dtype;
  call.priority = resolve_priority(options_->priority, environment_.policy, op, dtype);
  call.timeout = timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
  call.deadline = Deadline::after(call.timeout);
  // In a batch the caller waits for all of it, later.
  call.caller_waits = !async_op && !is_coalescing();
  return call;
}

void Backend::give_up(const Call& call, const std::exception& error) {
  Members members;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    members = members_;
  }
  const uint64_t flight = note_call(call, {}, {}, 0);
  flight_recorder().end(flight, {Status::invalid_argument(exception_text(error))});
  if (members.process == nullptr) return;
  members.process->engine().reject(*members.group, call.site.sequence, call.site.op,
                                   exception_text(error));
}

Request Backend::make_request(const Call& call, std::shared_ptr<Group> group, Plan plan,
                              const Layout& layout, uint32_t tag) {
  Request request;
  request.group = std::move(group);
  request.plan = std::move(plan);
  request.plan.signature.op = call.site.op;
  request.plan.signature.set_dtype(dtype_name(call.dtype));
  request.plan.signature.layout = layout.pack();
  request.sequence = call.site.sequence;
  request.tag = tag;
  request.priority = call.priority;
  request.deadline = call.deadline;
  request.timeout = call.timeout;
  request.caller_waits = call.caller_waits;
  return request;
}

c10::intrusive_ptr<Work> Backend::launch(const Call& call, Plan plan, const Layout& layout,
                                         uint32_t tag, Operands operands, Staging staging,
                                         const Submit& submit) {
  Members members = usable_members(call.site);
  Engine& engine = members.process->engine();
  const ProcessDevice::Begun begun = begin_on_device(members, call, plan, operands, staging);
  const uint64_t flight = note_call(call, operands, plan, tag);
  auto work = c10::make_intrusive<Work>(context_, call, std::move(operands), std::move(staging),
                                        flight, begun.order);
  note_coalesced(work);
  Request request = make_request(call, std::move(members.group), std::move(plan), layout, tag);
  if (begun.call != nullptr) {
    request.device = begun.call;
    request.on_submitted = [order = begun.order] { order->submitted().set(); };
    request.caller_waits = false;  // it may not enter the engine
  }
  // on_done, which comes later, has it for as long.
  request.keep_memory = [work = work.get()] { return work->sent_memory(); };
  request.on_done = [held = work](const OpResult& result) mutable {
    // Let go of here, where no lock is held: tensors may need the GIL to be freed.
    const c10::intrusive_ptr<Work> work = std::move(held);
    work->complete(result);
  };
  engine.statistics().count_call(call.site.op, call.priority);
  const bool point_to_point = call.site.sequence == 0;
  record_call(
      call, work->operands(), point_to_point, [this] { return recorded_group(); },
      [&] { submit(engine, std::move(request)); });
  return work;
}

ProcessDevice::Begun Backend::begin_on_device(const Members& members, const Call& call,
                                              const Plan& plan, const Operands& operands,
                                              const Staging& staging) const {
  const c10::Device device = check_device(call.site, operands.inputs, operands.outputs);
  if (device.is_cpu()) return {};
  return members.process->device(call.site, device, environment_)
      .begin(call.site, *members.group, plan, operands, staging);
}

c10::intrusive_ptr<c10d::Work> Backend::exchange(const Call& call, Plan plan, const Layout& layout,
                                                 Operands operands, Staging staging) {
  return launch(call, std::move(plan), layout, /*tag=*/0, std::move(operands), std::move(staging),
                [](Engine& engine, Request request) { engine.submit(std::move(request)); });
}

c10::intrusive_ptr<c10d::Work> Backend::exchange_by(const Call& call,
                                                    std::unique_ptr<ExchangeSteps> steps,
                                                    const Layout& layout, Operands operands,
                                                    Staging staging) {
  const auto submit = [&steps](Engine& engine, Request request) {
    std::function<void(const OpResult&)> on_done = std::exchange(request.on_done, nullptr);
    std::make_shared<ExchangePipeline>(engine, std::move(request), std::move(steps),
                                       std::move(on_done))
        ->start();
  };
  return launch(call, {}, layout, /*tag=*/0, std::move(operands), std::move(staging), submit);
}

uint64_t Backend::note_call(const Call& call, const Operands& operands, const Plan& plan,
                            uint32_t tag) const {
  const auto bytes = [](const std::vector<at::Tensor>& tensors) {
    uint64_t sum = 0;
    for (const at::Tensor& tensor : tensors) sum += tensor.nbytes();
    return sum;
  };
  FlightRecord record;
  record.group = context_->flight_group();
  record.op = call.site.op;
  record.sequence = call.site.sequence;
  if (call.site.sequence == 0) {
    record.tag = tag;
    for (const auto* messages : {&plan.sends, &plan.receives}) {
      if (!messages->empty()) record.peer = messages->front().peer;
    }
  }
  record.dtype = padded_name(dtype_name(call.dtype));
  record.bytes_in = bytes(operands.inputs);
  record.bytes_out = bytes(operands.outputs);
  record.priority = call.priority;
  record.begin = call.begin;
  return flight_recorder().begin(std::move(record));
}

RecordedGroup Backend::recorded_group() const {
  RecordedGroup recorded{pg_uid_, pg_desc_, size_};
  const std::vector<uint64_t>& ranks = options_->global_ranks_in_group;
  if (ranks.size() < 2) return recorded;
  recorded.first = static_cast<int>(ranks[0]);
  recorded.stride = static_cast<int>(ranks[1] - ranks[0]);
  for (size_t i = 2; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != ranks[1] - ranks[0]) recorded.stride = 0;
  }
  return recorded;
}

}  // namespace freescale
