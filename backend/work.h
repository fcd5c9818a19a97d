#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "backend/call.h"
#include "backend/device_order.h"
#include "backend/device_step_meter.h"
#include "backend/group_context.h"
#include "backend/profiler_range.h"
#include "backend/staging.h"
#include "cpp/scheduler/completion.h"
#include "cpp/scheduler/engine.h"

namespace freescale {

// torch's handle on one call. Thread-safe; waited for by any thread, any number of times. It owns
// the call's tensors until the call is done, the outputs for as long as it lives.
class Work final : public c10d::Work {
 public:
  // `flight` is the call's number in the flight recorder; `order` is null for CPU tensors.
  Work(std::shared_ptr<GroupContext> context, const Call& call, Operands operands, Staging staging,
       uint64_t flight, std::shared_ptr<DeviceOrder> order);

  const Operands& operands() const { return operands_; }

  // What keeps the memory alive that the call sends.
  std::shared_ptr<const void> sent_memory() const;

  // The call is over: copies scratch memory to the outputs, then releases the waiters, then
  // completes the future. Called exactly once, by a completion of the engine, with no lock held.
  void complete(const OpResult& result) noexcept;

  // Blocks until the call is over, and helps it along meanwhile. Throws what went wrong. With a
  // timeout that runs out it throws too, and the operation goes on.
  //
  // On CUDA tensors only the current stream waits until the call is over, as with torch's NCCL
  // backend, and the caller only where DeviceOrder says so, until all ranks have called; with a
  // timeout the caller waits too.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Blocks like wait(), but returns what went wrong.
  Status outcome();
  // For those who measure what streams wait for.
  AwaitedCall awaited_call() const;
  // Of a call on CUDA tensors, for which streams wait.
  bool on_device() const { return order_ != nullptr; }
  // For a thread that waited by other means than this class: from `begin` to `end`, or to the end
  // of the call if that was sooner. Returns which.
  Nanoseconds note_awaited(Nanoseconds begin, Nanoseconds end) const;
  bool isCompleted() override { return completion_.is_set(); }
  std::vector<at::Tensor> result() override { return operands_.outputs; }
  // Rank in the group that a received message came from; -1 for anything else, and before
  // it came.
  int sourceRank() const override { return completion_.is_set() ? source_ : kAnySource; }
  uint64_t getSequencenumber() const override { return call_.site.sequence; }
  // CPU tensors are complete when the call is: there is no stream to order.
  void synchronize() override {
    if (order_ != nullptr) wait();
  }
  void blockCurrentStream() override { wait(); }
  // Closes the whole group, as torch's NCCL backend does: peers take part in the operation, so it
  // cannot be undone for one rank.
  void abort() override;
  // The outputs, as a list of tensors.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // A c10d::WorkResult; never an error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

 private:
  Status do_rest();
  void note_end(PathSet paths);
  void log_call(PathSet paths) const;
  void log_wait(Nanoseconds begin, Nanoseconds end) const;
  bool wait_in_turns(Engine& engine, Completion& completion, Deadline deadline);
  bool wait_until_set(Completion& completion, std::chrono::milliseconds timeout);
  bool wait_on_host(std::chrono::milliseconds timeout);
  void wait_on_device(std::chrono::milliseconds timeout);
  void order_stream();
  void do_rest_on_stream();
  void settle_future();
  void settle_or_warn(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  void settle(c10::ivalue::Future& future);

  const std::shared_ptr<GroupContext> context_;
  const Call call_;
  Operands operands_;
  Staging staging_;
  const uint64_t flight_;
  const std::shared_ptr<DeviceOrder> order_;
  const bool has_rest_;                         // for the staging to do
  const std::shared_ptr<ProfilerRange> range_;  // null where nobody profiles
  // Written before completion_ is set, read after.
  Status status_;
  int source_ = kAnySource;
  Nanoseconds ready_ = 0;  // see OpResult
  Nanoseconds end_ = 0;
  Completion completion_;

  std::mutex future_mutex_;  // guards the two below
  bool settled_ = false;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The name under which profilers show the operation: "freescale:all_reduce".
const char* work_title(OpKind op);
// torch's own name for the operation.
c10d::OpType op_type(OpKind op);

}  // namespace freescale
