#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include "backend/call.h"
#include "backend/environment.h"
#include "backend/group_context.h"
#include "backend/options.h"
#include "backend/process_engine.h"
#include "backend/record.h"
#include "backend/reduction_steps.h"
#include "backend/staging.h"
#include "backend/work.h"
#include "cpp/collectives/collectives.h"
#include "cpp/scheduler/layout.h"

namespace freescale {

// torch.distributed's view of one process group: checks arguments, makes a plan of them, hands it
// to the process's engine, and returns a Work. Thread-safe; no call but the constructor (or, where
// Options::eager is off, the first call), monitoredBarrier() and the closing ones blocks.
//
// The implementation is spread by family: connecting.cc, exchanges.cc, reductions.cc,
// point_to_point.cc, coalescing.cc, monitored_barrier.cc, split.cc.
class Backend final : public c10d::Backend {
 public:
  // Meets the other members through `store` and connects to them, now or with the first call;
  // blocks until all are there or the options' timeout has passed. The options are copied.
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
          const c10::intrusive_ptr<BackendOptions>& options);
  ~Backend() override;

  const std::string getBackendName() const override { return "freescale"; }
  // A copy: torch's split_group() changes what it gets.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  const c10::intrusive_ptr<BackendOptions>& live_options() const { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  // All members count alike from the same number on: there is nothing to agree upon.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  // How each member is reached, and why; empty before they are connected.
  std::vector<LinkReport> links() const;
  int split_count() const { return split_count_.load(); }

  // Both end all operations of the group, here and at the peers. shutdown() waits before for those
  // that streams wait for; nothing else waits for a peer.
  void abort() override;
  void shutdown() override;

  // exchanges.cc
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<int64_t>& output_splits,
                                               std::vector<int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs,
                                          std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<c10d::Work> gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                    const c10d::GatherOptions& options) override;
#endif
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override;

  // reductions.cc
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors,
                                        const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;

  // point_to_point.cc
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // coalescing.cc
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // monitored_barrier.cc
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // split.cc
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;

 private:
  // What an open group has and a closed one has not.
  struct Members {
    std::shared_ptr<ProcessEngine> process;
    std::shared_ptr<Group> group;  // null until connected
  };
  // How launch() hands the finished request over.
  using Submit = std::function<void(Engine&, Request)>;

  // connecting.cc
  void connect();
  void refuse_to_connect(const std::string& reason);
  std::shared_ptr<GroupContext> context() const;  // null until connected

  // The beginning of every call: refuses it when the group cannot be used, and takes its number.
  Call begin(OpKind op, c10::ScalarType dtype, std::chrono::milliseconds timeout, bool async_op,
             bool numbered);
  // Throws when the group is closed or belongs to the parent of a fork.
  Members usable_members(const CallSite& site) const;

  // Runs `body(call)`, which checks the arguments and starts the operation. If it throws, the peers
  // are told that this rank gave the call up, and the exception goes on.
  template <typename Body>
  c10::intrusive_ptr<c10d::Work> collective(OpKind op, c10::ScalarType dtype,
                                            std::chrono::milliseconds timeout, bool async_op,
                                            Body body);
  void give_up(const Call& call, const std::exception& error);

  // Start a collective of one exchange, of several, or of a reduction's steps.
  c10::intrusive_ptr<c10d::Work> exchange(const Call& call, Plan plan, const Layout& layout,
                                          Operands operands, Staging staging);
  c10::intrusive_ptr<c10d::Work> exchange_by(const Call& call, std::unique_ptr<ExchangeSteps> steps,
                                             const Layout& layout, Operands operands,
                                             Staging staging);
  // Whether several exchanges, in which hosts gather or spread, may be better than one.
  bool may_go_by_host(const Operands& operands) const;
  // Whether equal parts of so many bytes are to be gathered by each host. Only parts that are
  // equal: a rank on whose way others' lie does not know how long those are.
  bool gathers_by_host(const Operands& operands, size_t bytes) const;
  // Equal parts of both go to and come from each rank, by way of each host.
  c10::intrusive_ptr<c10d::Work> exchange_by_host(const Call& call, const Segment& input,
                                                  const Segment& output, Operands operands,
                                                  Staging staging);
  // One exchange after the other; the first includes what stays on this rank.
  c10::intrusive_ptr<c10d::Work> exchange_in_stages(const Call& call, std::vector<Plan> stages,
                                                    const Layout& layout, Operands operands,
                                                    Staging staging);
  // `output[r]` comes from rank r; over the network once for each host.
  c10::intrusive_ptr<c10d::Work> gather_all(const Call& call, const Pieces& input,
                                            std::vector<Pieces> output, const Layout& layout,
                                            Operands operands, Staging staging);
  c10::intrusive_ptr<c10d::Work> reduce_by(const Call& call, std::unique_ptr<ReductionSteps> steps,
                                           const Layout& layout, Operands operands,
                                           Staging staging);
  // One exchange, and what is to be combined then waits for who waits for the Work.
  c10::intrusive_ptr<c10d::Work> reduce_on_device(const Call& call,
                                                  std::shared_ptr<ReductionSteps> steps,
                                                  const Layout& layout, Operands operands,
                                                  Staging staging);
  // Point-to-point: there is no number, and so no Backend::collective().
  c10::intrusive_ptr<Work> start_send(const Call& call, int peer, uint32_t tag,
                                      const at::Tensor& tensor);
  c10::intrusive_ptr<Work> start_receive(const Call& call, int peer, uint32_t tag,
                                         const at::Tensor& tensor);
  c10::intrusive_ptr<c10d::Work> receive_from(std::vector<at::Tensor>& tensors, int peer, int tag);

  // monitored_barrier.cc: the flags of the ranks that did not come, as rank 0 finds them and as the
  // others hear of them. (size,) uint8.
  at::Tensor collect_missing(const Call& call, uint32_t tag, bool wait_all_ranks);
  at::Tensor ask_for_missing(const Call& call, uint32_t tag);

  // Makes the Work and the request for it, and submits that.
  c10::intrusive_ptr<Work> launch(const Call& call, Plan plan, const Layout& layout, uint32_t tag,
                                  Operands operands, Staging staging, const Submit& submit);
  // Neither member is set for a call on CPU tensors.
  ProcessDevice::Begun begin_on_device(const Members& members, const Call& call, const Plan& plan,
                                       const Operands& operands, const Staging& staging) const;
  static Request make_request(const Call& call, std::shared_ptr<Group> group, Plan plan,
                              const Layout& layout, uint32_t tag);
  RecordedGroup recorded_group() const;
  // Enters the call into the flight recorder; returns its number there.
  uint64_t note_call(const Call& call, const Operands& operands, const Plan& plan,
                     uint32_t tag) const;

  // Whether another backend is to combine them.
  bool hands_on(const std::vector<at::Tensor>& tensors) const;
  ReductionTask reduction_task(const Call& call, c10::Device device,
                               const c10d::ReduceOp& reduction) const;
  c10::intrusive_ptr<c10d::Work> all_reduce_flat(const Call& call,
                                                 const std::vector<at::Tensor>& tensors,
                                                 const c10d::ReduceOp& reduction);

  // `inputs[r]` are the elements that rank r combines; all lie in `staging` or in the operands.
  c10::intrusive_ptr<c10d::Work> scatter_reduced(const Call& call,
                                                 const std::vector<Segment>& inputs,
                                                 const Segment& output,
                                                 const c10d::ReduceOp& reduction, size_t tensors,
                                                 Operands operands, Staging staging);

  void close(const std::string& reason);
  // Adds the work to the batch that this thread has open, if any.
  void note_coalesced(const c10::intrusive_ptr<Work>& work);
  bool is_coalescing() const;

  const c10::intrusive_ptr<BackendOptions> options_;
  // This group's own part of the store it was made with.
  const c10::intrusive_ptr<c10d::Store> store_;
  const Environment environment_;
  // What combines CUDA tensors for this group; null: itself.
  c10::intrusive_ptr<c10d::Backend> device_reducer_;
  std::mutex connecting_;  // held while one thread connects; before mutex_

  // Written once, by connect(), under mutex_; calls read them after that.
  std::vector<LinkReport> links_;
  HostMap hosts_;
  std::shared_ptr<GroupContext> context_;

  mutable std::mutex mutex_;  // guards the rest
  Members members_;           // null once closed
  std::string close_reason_;
  uint64_t last_sequence_ = 0;  // once closed
  // The batch between startCoalescing() and endCoalescing(), and the thread that opened it.
  std::thread::id coalescing_thread_;
  std::vector<c10::intrusive_ptr<Work>> coalesced_;
  std::map<std::vector<int>, int> splits_;  // made so far, by members
  std::atomic<int> split_count_{0};
};

template <typename Body>
c10::intrusive_ptr<c10d::Work> Backend::collective(OpKind op, c10::ScalarType dtype,
                                                   std::chrono::milliseconds timeout, bool async_op,
                                                   Body body) {
  const Call call = begin(op, dtype, timeout, async_op, /*numbered=*/true);
  try {
    return body(call);
  } catch (const std::exception& error) {
    give_up(call, error);
    throw;
  }
}

}  // namespace freescale
