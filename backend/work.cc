#include "backend/work.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>

#include <ATen/core/jit_type.h>

#include "backend/backward_futures.h"
#include "backend/blocked_thread.h"
#include "backend/errors.h"
#include "backend/flight_dump.h"
#include "backend/interpreter.h"
#include "cpp/scheduler/event_log.h"

namespace freescale {
namespace {

constexpr size_t kOps = static_cast<size_t>(OpKind::kCount);

// Work's base class records the inputs' shapes where a profiler asks for them; of a receive, as
// with torch's own backends, those of what it fills.
std::optional<std::vector<at::Tensor>> profiled_inputs(const Operands& operands) {
  if (!operands.inputs.empty()) return operands.inputs;
  if (!operands.outputs.empty()) return operands.outputs;
  return std::nullopt;
}

c10d::WorkResult work_result(const Status& status) {
  if (status.ok()) return c10d::WorkResult::SUCCESS;
  return status.code() == StatusCode::kTimedOut ? c10d::WorkResult::TIMEOUT
                                                : c10d::WorkResult::COMM_ERROR;
}

}  // namespace

const char* work_title(OpKind op) {
  static const auto titles = [] {
    std::array<std::string, kOps> made;
    for (size_t i = 0; i < kOps; ++i) {
      made[i] = "freescale:" + std::string(op_name(static_cast<OpKind>(i)));
    }
    return made;
  }();
  return titles[static_cast<size_t>(op)].c_str();
}

c10d::OpType op_type(OpKind op) {
  using c10d::OpType;
  switch (op) {
    case OpKind::kAllToAllSingle:
      return OpType::ALLTOALL_BASE;
    case OpKind::kAllToAll:
      return OpType::ALLTOALL;
    case OpKind::kAllGather:
      return OpType::ALLGATHER;
    case OpKind::kAllGatherIntoTensor:
      return OpType::_ALLGATHER_BASE;
    case OpKind::kAllGatherCoalesced:
      return OpType::ALLGATHER_COALESCED;
    case OpKind::kBroadcast:
      return OpType::BROADCAST;
    case OpKind::kScatter:
      return OpType::SCATTER;
    case OpKind::kGather:
      return OpType::GATHER;
    case OpKind::kSend:
      return OpType::SEND;
    case OpKind::kRecv:
      return OpType::RECV;
    case OpKind::kBarrier:
      return OpType::BARRIER;
    case OpKind::kAllReduce:
      return OpType::ALLREDUCE;
    case OpKind::kAllReduceCoalesced:
      return OpType::ALLREDUCE_COALESCED;
    case OpKind::kReduce:
      return OpType::REDUCE;
    case OpKind::kReduceScatter:
      return OpType::REDUCE_SCATTER;
    case OpKind::kReduceScatterTensor:
      return OpType::_REDUCE_SCATTER_BASE;
    case OpKind::kReduceScatterCoalesced:
      return OpType::COALESCED;
    case OpKind::kNone:
    case OpKind::kCount:
      break;
  }
  return OpType::UNKNOWN;
}

Work::Work(std::shared_ptr<GroupContext> context, const Call& call, Operands operands,
           Staging staging, uint64_t flight, std::shared_ptr<DeviceOrder> order)
    : c10d::Work(call.site.rank,
                 call.from_anyone ? c10d::OpType::RECVANYSOURCE : op_type(call.site.op),
                 call.from_anyone ? "freescale:recvAnySource" : work_title(call.site.op),
                 profiled_inputs(operands)),
      context_(std::move(context)),
      call_(call),
      operands_(std::move(operands)),
      staging_(std::move(staging)),
      flight_(flight),
      order_(std::move(order)),
      has_rest_(staging_.has_rest()),
      range_(ProfilerRange::take(recordFunctionEndCallback_)) {}

Status Work::do_rest() {
  try {
    staging_.do_rest();
    return {};
  } catch (const std::exception& error) {
    return Status::system(c10::str(call_.site, "local work: ", exception_text(error)));
  }
}

void Work::log_call(PathSet paths) const {
  EventLogs& logs = EventLogs::of_process();
  if (!logs.want(EventKind::kCall)) return;
  const FlightGroup& group = *context_->flight_group();
  Event event;
  event.kind = EventKind::kCall;
  event.op = call_.site.op;
  event.priority = call_.priority;
  event.failed = !status_.ok();
  event.paths = paths;
  event.rank = group.rank_in_job();
  event.group = group.id;
  event.sequence = call_.site.sequence;
  for (const at::Tensor& input : operands_.inputs) event.bytes += input.nbytes();
  event.begin = call_.begin;
  event.ready = ready_;
  event.end = end_;
  logs.note(event);
}

// Of a call that goes on after the wait nobody knows yet when its ranks will have come.
void Work::log_wait(Nanoseconds begin, Nanoseconds end) const {
  EventLogs& logs = EventLogs::of_process();
  if (!logs.want(EventKind::kWait)) return;
  Event event;
  event.kind = EventKind::kWait;
  event.op = call_.site.op;
  event.priority = call_.priority;
  event.thread = thread_number();
  event.begin = begin;
  event.ready = completion_.is_set() ? ready_ : end;
  event.end = end;
  logs.note(event);
}

Nanoseconds Work::note_awaited(Nanoseconds begin, Nanoseconds end) const {
  const Nanoseconds until = completion_.is_set() ? std::min(end, end_) : end;
  if (until <= begin) return begin;
  log_wait(begin, until);
  return until;
}

// For those who ask later what this call came to.
void Work::note_end(PathSet paths) {
  context_->engine_in_completion().statistics().count_in_flight(call_.site.op, call_.priority,
                                                                end_ - call_.begin);
  log_call(paths);
  flight_recorder().end(flight_, {status_, {}, source_, paths});
  if (status_.ok()) return;
  context_->note_failure(status_);
  // Not only for a timeout here: the first rank that runs out of time tells the others to give up,
  // and it takes the dumps of all to see who was missing.
  write_flight_dump(context_->environment(), *context_->flight_group());
}

// Outputs, too: a rank sends on what it has received, or what is reduced in place. Not the tensors,
// which may get other storage.
std::shared_ptr<const void> Work::sent_memory() const {
  auto kept = std::make_shared<std::vector<c10::Storage>>();
  const std::vector<at::Tensor> scratch = staging_.tensors();
  for (const auto* tensors : {&operands_.inputs, &operands_.outputs, &scratch}) {
    for (const at::Tensor& tensor : *tensors) kept->push_back(tensor.storage());
  }
  return kept;
}

void Work::complete(const OpResult& result) noexcept {
  // On a device the rest is for the stream which waits for the call.
  status_ = result.status.ok() && order_ == nullptr ? do_rest() : result.status;
  if (status_.ok()) status_ = result.late;
  source_ = result.source;
  ready_ = result.ready;
  end_ = now_ns();
  note_end(result.paths);
  operands_.inputs.clear();
  if (order_ == nullptr || !has_rest_) staging_.release();
  // Both may end the profiler's range, so they go before anything that lets others continue.
  if (range_ != nullptr) range_->note_over();
  finish(status_.ok() ? nullptr : make_exception(status_));
  completion_.set();
  if (order_ != nullptr) {
    order_->finish(ready_, end_);
    context_->note_over(this);
  }
  settle_future();
}

// Comes back to Python now and then, so that Ctrl-C ends a rank whose peers do not come.
bool Work::wait_in_turns(Engine& engine, Completion& completion, Deadline deadline) {
  constexpr std::chrono::milliseconds kTurn(100);
  while (!engine.wait(completion, std::min(deadline, Deadline::after(kTurn)))) {
    if (deadline.passed(now_ns())) return false;
    check_signals();
  }
  return true;
}

bool Work::wait_until_set(Completion& completion, std::chrono::milliseconds timeout) {
  if (completion.is_set()) return true;
  const std::shared_ptr<ProcessEngine> process = context_->lock_process();
  // Its engine is gone only once everything in flight has ended.
  if (process == nullptr) return true;
  if (process->is_forked_copy()) throw_status(forked_status(call_.site));
  const Deadline deadline = timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout);
  const Nanoseconds begin = now_ns();
  const BlockedThread blocked;
  const bool done = wait_in_turns(process->engine(), completion, deadline);
  const Nanoseconds end = now_ns();
  process->engine().statistics().count_blocked(call_.site.op, call_.priority, end - begin);
  if (blocked.is_outermost()) log_wait(begin, end);
  return done;
}

bool Work::wait_on_host(std::chrono::milliseconds timeout) {
  if (!wait_until_set(completion_, timeout)) {
    throw_status(Status::timed_out(c10::str(call_.site, "wait() Timed out after ", timeout.count(),
                                            " ms; the operation is still in flight")));
  }
  if (!status_.ok()) throw_status(status_);
  return true;
}

AwaitedCall Work::awaited_call() const {
  AwaitedCall call{call_.site.op, call_.priority, {}, order_};
  if (order_ == nullptr) {
    const Nanoseconds now = now_ns();
    call.times =
        completion_.is_set() ? DeviceOrder::Times{ready_, end_} : DeviceOrder::Times{now, now};
  }
  return call;
}

bool Work::wait(std::chrono::milliseconds timeout) {
  std::optional<StreamWait> measured;
  // Nobody waits for what is over, and a completion that runs inside another wait is part of that.
  if (StreamWait::any_meter() && !completion_.is_set() && !BlockedThread::is_here()) {
    measured.emplace(on_device());
  }
  if (on_device()) {
    wait_on_device(timeout);
  } else {
    wait_on_host(timeout);
  }
  if (measured.has_value()) measured->over({awaited_call()});
  ProfilerRange::end_those_over();
  return true;
}

void Work::wait_on_device(std::chrono::milliseconds timeout) {
  if (timeout != kNoTimeout) {
    wait_on_host(timeout);
  } else if (order_->submits_ahead()) {
    wait_until_set(order_->submitted(), kNoTimeout);
  }
  context_->note_awaited(this);
  if (completion_.is_set()) context_->note_over(this);  // it may have missed that
  if (completion_.is_set() && !status_.ok()) throw_status(status_);
  order_stream();
}

void Work::order_stream() {
  const Status status = order_->order_current_stream();
  if (!status.ok()) throw_status(Status::system(c10::str(call_.site, status.message())));
  do_rest_on_stream();
}

void Work::do_rest_on_stream() {
  if (order_ == nullptr || !has_rest_) return;
  order_->do_rest_once([this] {
    const c10::Stream stream = current_stream(order_->device());
    for (const at::Tensor& kept : staging_.tensors()) record_stream(kept, stream);
    if (Status status = do_rest(); !status.ok()) throw_status(status);
    staging_.release();
  });
}

Status Work::outcome() {
  wait_until_set(completion_, kNoTimeout);
  ProfilerRange::end_those_over();
  return status_;
}

void Work::abort() {
  const std::shared_ptr<ProcessEngine> process = context_->lock_process();
  const std::shared_ptr<Group> group = context_->lock_group();
  if (process == nullptr || group == nullptr || process->is_forked_copy()) return;
  process->engine().close_group(*group, c10::str(call_.site, "aborted by the user"));
}

void Work::settle(c10::ivalue::Future& future) {
  if (!status_.ok()) return future.setError(make_exception(status_));
  try {
    do_rest_on_stream();
  } catch (const std::exception&) {
    return future.setError(std::current_exception());
  }
  future.markCompleted(c10::IValue(operands_.outputs));
}

void Work::settle_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    std::lock_guard<std::mutex> lock(future_mutex_);
    settled_ = true;
    future = future_;
  }
  if (!future) return;
  if (order_ == nullptr) return settle_or_warn(future);
  // A future of CUDA tensors records events, which are calls of the driver.
  order_->after_completion([self = c10::intrusive_ptr<Work>::reclaim_copy(this),
                            future = std::move(future)] { self->settle_or_warn(future); });
}

void Work::settle_or_warn(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  try {
    settle(*future);
  } catch (const std::exception& error) {
    TORCH_WARN(call_.site, "a callback of the work's future failed: ", exception_text(error));
  }
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  // Made on demand: few callers want one, and it costs a few hundred nanoseconds.
  static const c10::TypePtr kTensorList = c10::ListType::create(c10::TensorType::get());
  bool settle_here = false;
  {
    std::lock_guard<std::mutex> lock(future_mutex_);
    if (!future_) {
      std::vector<c10::Device> devices;
      if (order_ != nullptr) devices.push_back(order_->device());
      future_ = c10::make_intrusive<c10::ivalue::Future>(kTensorList, std::move(devices));
      settle_here = settled_;
    }
  }
  if (settle_here) {
    settle(*future_);
  } else {
    note_future_in_backward(c10::intrusive_ptr<Work>::reclaim_copy(this));
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> Work::getFutureResult() {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  // The callback is kept by the future, which this work keeps: it must not keep the work.
  getFuture()->addCallback([result, status = &status_](c10::ivalue::Future&) {
    result->markCompleted(c10::IValue(static_cast<int64_t>(work_result(*status))));
  });
  return result;
}

}  // namespace freescale
