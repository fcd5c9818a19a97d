// The collectives that only move bytes: each checks its arguments, lays them out as memory, and
// lets a plan builder of cpp/collectives say what goes where.

#include <utility>

#include "backend/backend.h"
#include "backend/exchange_steps.h"
#include "backend/tensor_lists.h"
#include "backend/validate.h"
#include "cpp/scheduler/layout.h"

namespace freescale {
namespace {

// Exchanges one after the other, without local work.
class PlannedStages final : public ExchangeSteps {
 public:
  explicit PlannedStages(std::vector<Plan> stages) : stages_(std::move(stages)) {}
  int64_t blocks() const override { return 1; }
  int stages() const override { return static_cast<int>(stages_.size()); }
  void plan_stage(const Block&, int stage, Plan& plan) override {
    plan.sends = std::move(stages_[stage].sends);
    plan.receives = std::move(stages_[stage].receives);
  }
  void finish_stage(const Block&, int) override {}

 private:
  std::vector<Plan> stages_;
};

// One piece from each tensor list entry: `tensors[r]` is rank r's.
template <typename Stage>
std::vector<Pieces> piece_per_rank(const std::vector<at::Tensor>& tensors, Stage stage) {
  std::vector<Pieces> pieces;
  pieces.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) pieces.push_back({stage(tensor)});
  return pieces;
}

std::vector<Pieces> outputs_per_rank(Staging& staging, const std::vector<at::Tensor>& outputs) {
  return piece_per_rank(outputs, [&](const at::Tensor& tensor) { return staging.output(tensor); });
}

std::vector<Pieces> inputs_per_rank(Staging& staging, const std::vector<at::Tensor>& inputs) {
  return piece_per_rank(inputs, [&](const at::Tensor& tensor) { return staging.input(tensor); });
}

Pieces all_inputs(Staging& staging, const std::vector<at::Tensor>& inputs) {
  Pieces pieces;
  for (const at::Tensor& tensor : inputs) pieces.push_back(staging.input(tensor));
  return pieces;
}

// `whole` in equal parts, one per rank.
std::vector<Pieces> equal_pieces(const Segment& whole, int size) {
  std::vector<Pieces> pieces;
  pieces.reserve(size);
  for (int rank = 0; rank < size; ++rank) pieces.push_back({equal_part(whole, rank, size)});
  return pieces;
}

// Ranks must agree on the number of coalesced tensors; sizes and dtypes show in the messages.
Layout coalesced_layout(const std::vector<at::Tensor>& tensors) {
  return {.tensors = static_cast<int>(tensors.size())};
}

// The outputs of a coalesced all-gather for the inputs of one rank.
void check_outputs_of_rank(const CallSite& site, const std::vector<at::Tensor>& outputs,
                           const std::vector<at::Tensor>& inputs) {
  check_count(site, "outputs for one rank", outputs.size(), inputs.size(),
              "the number of inputs is");
  check_outputs(site, outputs, "an output");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dtype(site, outputs[i], "an output", inputs[i].scalar_type(), "its input");
  }
}

// The outputs of a coalesced all-gather into tensors.
void check_gathered_outputs(const CallSite& site, const std::vector<at::Tensor>& outputs,
                            const std::vector<at::Tensor>& inputs, int size) {
  check_count(site, "outputs", outputs.size(), inputs.size(), "the number of inputs is");
  check_outputs(site, outputs, "an output");
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_dtype(site, outputs[i], "an output", inputs[i].scalar_type(), "its input");
    check_elements(site, "an output", outputs[i].numel(), inputs[i].numel() * size,
                   "its inputs of all ranks have");
  }
  check_strided_overlap(site, outputs);
}

void check_list_per_rank(const CallSite& site, const std::vector<at::Tensor>& outputs,
                         const char* what, c10::ScalarType dtype, int size) {
  check_count(site, what, outputs.size(), size, "the size of the group is");
  check_outputs(site, outputs, "an output");
  check_dtypes(site, outputs, "an output", dtype, "the input");
  check_strided_overlap(site, outputs);
}

}  // namespace

c10::intrusive_ptr<c10d::Work> Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<int64_t>& output_splits,
                                                      std::vector<int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  return collective(
      OpKind::kAllToAllSingle, dtype_of(input), options.timeout, options.asyncOp,
      [&](const Call& call) {
        check_tensor(call.site, input, "the input");
        check_output(call.site, output, "the output");
        check_dtype(call.site, output, "the output", call.dtype, "the input");
        const auto sent = check_splits(call.site, "input", input, input_splits, size_);
        const auto received = check_splits(call.site, "output", output, output_splits, size_);
        Staging staging;
        const Segment from = staging.input(input);
        const Segment to = staging.output(output);
        Operands operands{{input}, {output}, input_splits, output_splits};
        Plan plan =
            plan_all_to_all(rank_, split_buffer(from.data, sent), split_buffer(to.data, received));
        check_memory(call.site, plan);
        const bool equal_parts = input_splits.empty() && output_splits.empty();
        if (equal_parts && gathers_by_host(operands, sent[0])) {
          return exchange_by_host(call, from, to, std::move(operands), std::move(staging));
        }
        return exchange(call, std::move(plan), {}, std::move(operands), std::move(staging));
      });
}

bool Backend::gathers_by_host(const Operands& operands, size_t bytes) const {
  return bytes > 0 && bytes <= environment_.aggregate_bytes && may_go_by_host(operands);
}

c10::intrusive_ptr<c10d::Work> Backend::exchange_by_host(const Call& call, const Segment& input,
                                                         const Segment& output, Operands operands,
                                                         Staging staging) {
  const size_t bytes = input.bytes / size_;
  std::byte* const passing = staging.scratch(pass_through_bytes(rank_, hosts_, bytes));
  std::vector<Plan> stages = plan_all_to_all_by_host(rank_, hosts_, equal_pieces(input, size_),
                                                     equal_pieces(output, size_), bytes, passing);
  return exchange_in_stages(call, std::move(stages), Layout{.by_host = true}, std::move(operands),
                            std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::exchange_in_stages(const Call& call,
                                                           std::vector<Plan> stages,
                                                           const Layout& layout, Operands operands,
                                                           Staging staging) {
  check_memory(call.site, stages[0]);  // for what would be copied onto itself
  auto steps = std::make_unique<PlannedStages>(std::move(stages));
  return exchange_by(call, std::move(steps), layout, std::move(operands), std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::alltoall(std::vector<at::Tensor>& outputs,
                                                 std::vector<at::Tensor>& inputs,
                                                 const c10d::AllToAllOptions& options) {
  return collective(
      OpKind::kAllToAll, dtype_of(inputs), options.timeout, options.asyncOp, [&](const Call& call) {
        check_count(call.site, "inputs", inputs.size(), size_, "the size of the group is");
        check_tensors(call.site, inputs, "an input");
        check_dtypes(call.site, inputs, "an input", call.dtype, "input 0");
        check_list_per_rank(call.site, outputs, "outputs", call.dtype, size_);
        Staging staging;
        Plan plan = plan_all_to_all(rank_, inputs_per_rank(staging, inputs),
                                    outputs_per_rank(staging, outputs));
        check_memory(call.site, plan);
        return exchange(call, std::move(plan), {}, {inputs, outputs, {}, {}}, std::move(staging));
      });
}

bool Backend::may_go_by_host(const Operands& operands) const {
  return hosts_.spans_hosts_with_several() && operands.inputs[0].device().is_cpu();
}

c10::intrusive_ptr<c10d::Work> Backend::gather_all(const Call& call, const Pieces& input,
                                                   std::vector<Pieces> output, const Layout& layout,
                                                   Operands operands, Staging staging) {
  const bool by_host = may_go_by_host(operands);
  std::vector<Plan> stages;
  if (by_host) stages = plan_all_gather_by_host(rank_, hosts_, input, output);
  Plan plan = plan_all_gather(rank_, input, std::move(output));
  check_memory(call.site, plan);
  if (!by_host) {
    return exchange(call, std::move(plan), layout, std::move(operands), std::move(staging));
  }
  return exchange_in_stages(call, std::move(stages), layout, std::move(operands),
                            std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::vector<at::Tensor>& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return collective(
      OpKind::kAllGather, dtype_of(inputs), options.timeout, options.asyncOp,
      [&](const Call& call) {
        check_count(call.site, "inputs", inputs.size(), 1, "the number of inputs must be");
        check_count(call.site, "output lists", outputs.size(), 1, "the number of lists must be");
        check_tensor(call.site, inputs[0], "the input");
        check_list_per_rank(call.site, outputs[0], "outputs", call.dtype, size_);
        check_elements(call.site, "the own rank's output", outputs[0][rank_].numel(),
                       inputs[0].numel(), "the input has");
        Staging staging;
        const Segment input = staging.input(inputs[0]);
        std::vector<Pieces> parts = outputs_per_rank(staging, outputs[0]);
        return gather_all(call, {input}, std::move(parts), {}, {inputs, outputs[0], {}, {}},
                          std::move(staging));
      });
}

c10::intrusive_ptr<c10d::Work> Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  return collective(OpKind::kAllGatherIntoTensor, dtype_of(input), options.timeout, options.asyncOp,
                    [&](const Call& call) {
                      check_tensor(call.site, input, "the input");
                      check_output(call.site, output, "the output");
                      check_dtype(call.site, output, "the output", call.dtype, "the input");
                      check_elements(call.site, "the output", output.numel(), input.numel() * size_,
                                     "the inputs of all ranks have");
                      Staging staging;
                      const Segment whole = staging.output(output);
                      std::vector<Pieces> parts = equal_pieces(whole, size_);
                      const Segment own = staging.input(input);
                      return gather_all(call, {own}, std::move(parts), {},
                                        {{input}, {output}, {}, {}}, std::move(staging));
                    });
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_coalesced(
    std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(
      OpKind::kAllGatherCoalesced, dtype_of(inputs), options.timeout, options.asyncOp,
      [&](const Call& call) {
        check_tensors(call.site, inputs, "an input");
        check_count(call.site, "output lists", outputs.size(), size_, "the size of the group is");
        std::vector<at::Tensor> all_outputs;
        for (const std::vector<at::Tensor>& of_rank : outputs) {
          check_outputs_of_rank(call.site, of_rank, inputs);
          all_outputs.insert(all_outputs.end(), of_rank.begin(), of_rank.end());
        }
        check_strided_overlap(call.site, all_outputs);
        Staging staging;
        std::vector<Pieces> pieces(size_);
        for (int rank = 0; rank < size_; ++rank) {
          for (const at::Tensor& to : outputs[rank]) pieces[rank].push_back(staging.output(to));
        }
        const Pieces own = all_inputs(staging, inputs);
        return gather_all(call, own, std::move(pieces), coalesced_layout(inputs),
                          {inputs, std::move(all_outputs), {}, {}}, std::move(staging));
      });
}

c10::intrusive_ptr<c10d::Work> Backend::allgather_into_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::AllgatherOptions& options) {
  return collective(OpKind::kAllGatherCoalesced, dtype_of(inputs), options.timeout, options.asyncOp,
                    [&](const Call& call) {
                      check_tensors(call.site, inputs, "an input");
                      check_gathered_outputs(call.site, outputs, inputs, size_);
                      Staging staging;
                      std::vector<Pieces> parts(size_);
                      for (const at::Tensor& output : outputs) {
                        const Segment whole = staging.output(output);
                        for (int rank = 0; rank < size_; ++rank) {
                          parts[rank].push_back(equal_part(whole, rank, size_));
                        }
                      }
                      const Pieces own = all_inputs(staging, inputs);
                      return gather_all(call, own, std::move(parts), coalesced_layout(inputs),
                                        {inputs, outputs, {}, {}}, std::move(staging));
                    });
}

c10::intrusive_ptr<c10d::Work> Backend::broadcast(std::vector<at::Tensor>& tensors,
                                                  const c10d::BroadcastOptions& options) {
  return collective(
      OpKind::kBroadcast, dtype_of(tensors), options.timeout, options.asyncOp,
      [&](const Call& call) {
        check_count(call.site, "tensors", tensors.size(), 1, "the number of tensors must be");
        check_root(call.site, options.rootRank, size_);
        const auto root = static_cast<int>(options.rootRank);
        Staging staging;
        Segment buffer;
        if (rank_ == root) {
          check_tensor(call.site, tensors[0], "the tensor");
          buffer = staging.input(tensors[0]);
        } else {
          check_output(call.site, tensors[0], "the tensor");
          buffer = staging.output(tensors[0]);
        }
        return exchange(call, plan_broadcast(rank_, size_, root, {buffer}), Layout{.root = root},
                        {tensors, tensors, {}, {}}, std::move(staging));
      });
}

c10::intrusive_ptr<c10d::Work> Backend::scatter(std::vector<at::Tensor>& outputs,
                                                std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ScatterOptions& options) {
  return collective(
      OpKind::kScatter, dtype_of(outputs), options.timeout, options.asyncOp, [&](const Call& call) {
        check_root(call.site, options.rootRank, size_);
        check_count(call.site, "outputs", outputs.size(), 1, "the number of outputs must be");
        check_output(call.site, outputs[0], "the output");
        const auto root = static_cast<int>(options.rootRank);
        const std::vector<at::Tensor> mine = only_list(call.site, inputs, rank_ == root, "input");
        Staging staging;
        if (rank_ == root) {
          check_count(call.site, "inputs", mine.size(), size_, "the size of the group is");
          check_tensors(call.site, mine, "an input");
          check_dtypes(call.site, mine, "an input", call.dtype, "the output");
        }
        std::vector<Pieces> input = inputs_per_rank(staging, mine);
        Plan plan = plan_scatter(rank_, root, std::move(input), {staging.output(outputs[0])});
        check_memory(call.site, plan);
        return exchange(call, std::move(plan), Layout{.root = root}, {mine, outputs, {}, {}},
                        std::move(staging));
      });
}

c10::intrusive_ptr<c10d::Work> Backend::gather(std::vector<std::vector<at::Tensor>>& outputs,
                                               std::vector<at::Tensor>& inputs,
                                               const c10d::GatherOptions& options) {
  return collective(
      OpKind::kGather, dtype_of(inputs), options.timeout, options.asyncOp, [&](const Call& call) {
        check_root(call.site, options.rootRank, size_);
        check_count(call.site, "inputs", inputs.size(), 1, "the number of inputs must be");
        check_tensor(call.site, inputs[0], "the input");
        const auto root = static_cast<int>(options.rootRank);
        const std::vector<at::Tensor> mine = only_list(call.site, outputs, rank_ == root, "output");
        if (rank_ == root) check_list_per_rank(call.site, mine, "outputs", call.dtype, size_);
        Staging staging;
        const Segment input = staging.input(inputs[0]);
        Plan plan = plan_gather(rank_, root, {input}, outputs_per_rank(staging, mine));
        check_memory(call.site, plan);
        return exchange(call, std::move(plan), Layout{.root = root}, {inputs, mine, {}, {}},
                        std::move(staging));
      });
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
c10::intrusive_ptr<c10d::Work> Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                                           const c10d::GatherOptions& options) {
  return collective(
      OpKind::kGather, dtype_of(input), options.timeout, options.asyncOp, [&](const Call& call) {
        check_root(call.site, options.rootRank, size_);
        check_tensor(call.site, input, "the input");
        const auto root = static_cast<int>(options.rootRank);
        Staging staging;
        std::vector<Pieces> parts;
        std::vector<at::Tensor> outputs;
        if (rank_ == root) {
          check_output(call.site, output, "the output");
          check_dtype(call.site, output, "the output", call.dtype, "the input");
          check_elements(call.site, "the output", output.numel(), input.numel() * size_,
                         "the inputs of all ranks have");
          parts = equal_pieces(staging.output(output), size_);
          outputs.push_back(output);
        }
        Plan plan = plan_gather(rank_, root, {staging.input(input)}, std::move(parts));
        check_memory(call.site, plan);
        return exchange(call, std::move(plan), Layout{.root = root},
                        {{input}, std::move(outputs), {}, {}}, std::move(staging));
      });
}
#endif

c10::intrusive_ptr<c10d::Work> Backend::barrier(const c10d::BarrierOptions& options) {
  return collective(
      OpKind::kBarrier, c10::ScalarType::Undefined, options.timeout, options.asyncOp,
      [&](const Call& call) { return exchange(call, plan_barrier(rank_, size_), {}, {}, {}); });
}

}  // namespace freescale
