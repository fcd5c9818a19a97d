// The collectives that combine: an exchange and a local reduction in rank order, by blocks. Those
// of CUDA tensors are another backend's where the group has one, and else in one block.

#include <numeric>
#include <utility>

#include "backend/backend.h"
#include "backend/dtype.h"
#include "backend/plain_dispatch.h"
#include "backend/tensor_lists.h"
#include "backend/validate.h"

namespace freescale {
namespace {

int64_t elements_in(const Segment& segment, c10::ScalarType dtype) {
  return static_cast<int64_t>(segment.bytes / c10::elementSize(dtype));
}

// What this rank contributes: `input`, or for PREMUL_SUM a multiple of it.
std::byte* contribution(Staging& staging, const Segment& input, const ReductionTask& task,
                        const c10d::ReduceOp& reduction) {
  if (reduction.op_ != Reduction::PREMUL_SUM) return input.data;
  const at::Tensor view =
      view_memory(input.data, elements_in(input, task.dtype), task.dtype, task.device);
  const at::Tensor product = premultiply(view, reduction);
  staging.keep(product);
  return static_cast<std::byte*>(product.mutable_data_ptr());
}

// The parts of all `tensors` for one rank after the other: [rank][tensor], not [tensor][rank].
std::vector<Segment> rank_by_rank(Staging& staging, const std::vector<at::Tensor>& tensors,
                                  int size) {
  const PlainDispatch guard;
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) {
    rows.push_back(tensor.reshape({size, tensor.numel() / size}));
    staging.keep(rows.back());
  }
  std::vector<Segment> memory;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& of_tensor : rows) parts.push_back(of_tensor.select(0, rank));
    memory.push_back(staging.flat_input(parts));
  }
  return memory;
}

void check_reduced_tensors(const CallSite& site, const std::vector<at::Tensor>& tensors,
                           const char* what, c10::ScalarType dtype) {
  check_outputs(site, tensors, what);
  check_dtypes(site, tensors, what, dtype, "the first one");
}

c10::Device device_of(const std::vector<at::Tensor>& tensors) {
  return !tensors.empty() && tensors[0].defined() ? tensors[0].device() : c10::Device(at::kCPU);
}

}  // namespace

bool Backend::hands_on(const std::vector<at::Tensor>& tensors) const {
  return device_reducer_ != nullptr && device_of(tensors).is_cuda();
}

ReductionTask Backend::reduction_task(const Call& call, c10::Device device,
                                      const c10d::ReduceOp& reduction) const {
  TORCH_CHECK_VALUE(RankOrderReducer::supports(reduction.op_, call.dtype), call.site, "ReduceOp.",
                    reduction_name(reduction.op_), " is not defined for dtype ",
                    dtype_name(call.dtype));
  return {rank_, size_, reduction.op_, call.dtype, device};
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_by(const Call& call,
                                                  std::unique_ptr<ReductionSteps> steps,
                                                  const Layout& layout, Operands operands,
                                                  Staging staging) {
  if (!device_of(operands.inputs).is_cpu()) {
    return reduce_on_device(call, std::move(steps), layout, std::move(operands),
                            std::move(staging));
  }
  return exchange_by(call, std::move(steps), layout, std::move(operands), std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_on_device(const Call& call,
                                                         std::shared_ptr<ReductionSteps> steps,
                                                         const Layout& layout, Operands operands,
                                                         Staging staging) {
  Plan plan;
  steps->plan_stage(Block{}, 0, plan);
  staging.keep(steps->scratch_memory());
  // The own contribution is read after the exchange.
  for (const at::Tensor& input : operands.inputs) staging.keep(input);
  staging.set_combine([steps = std::move(steps)] { steps->finish_stage(Block{}, 0); });
  return exchange(call, std::move(plan), layout, std::move(operands), std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::all_reduce_flat(const Call& call,
                                                        const std::vector<at::Tensor>& tensors,
                                                        const c10d::ReduceOp& reduction) {
  check_reduced_tensors(call.site, tensors, "a tensor", call.dtype);
  check_strided_overlap(call.site, tensors);
  const ReductionTask task = reduction_task(call, device_of(tensors), reduction);
  Staging staging;
  const Segment memory = staging.flat_in_place(tensors);
  const int64_t elements = elements_in(memory, call.dtype);
  std::byte* const input = contribution(staging, memory, task, reduction);
  return reduce_by(call, all_reduce_steps(task, input, memory.data, elements),
                   {-1, reduction.op_, static_cast<int>(tensors.size()), elements},
                   {tensors, tensors, {}, {}}, std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options) {
  if (hands_on(tensors)) return device_reducer_->allreduce(tensors, options);
  return collective(OpKind::kAllReduce, dtype_of(tensors), options.timeout, options.asyncOp,
                    [&](const Call& call) {
                      check_count(call.site, "tensors", tensors.size(), 1,
                                  "the number of tensors must be");
                      return all_reduce_flat(call, tensors, options.reduceOp);
                    });
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                         const c10d::AllreduceOptions& options) {
  return allreduce(tensors, options);  // which says what it thinks of sparse tensors
}

c10::intrusive_ptr<c10d::Work> Backend::allreduce_coalesced(
    std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) {
  if (hands_on(tensors)) return device_reducer_->allreduce_coalesced(tensors, options);
  return collective(OpKind::kAllReduceCoalesced, dtype_of(tensors), options.timeout,
                    options.asyncOp, [&](const Call& call) {
                      TORCH_CHECK_VALUE(!tensors.empty(), call.site,
                                        "got 0 tensors but needs at least 1");
                      return all_reduce_flat(call, tensors, options.reduceOp);
                    });
}

c10::intrusive_ptr<c10d::Work> Backend::reduce(std::vector<at::Tensor>& tensors,
                                               const c10d::ReduceOptions& options) {
  if (hands_on(tensors)) return device_reducer_->reduce(tensors, options);
  return collective(
      OpKind::kReduce, dtype_of(tensors), options.timeout, options.asyncOp, [&](const Call& call) {
        check_count(call.site, "tensors", tensors.size(), 1, "the number of tensors must be");
        check_root(call.site, options.rootRank, size_);
        check_reduced_tensors(call.site, tensors, "the tensor", call.dtype);
        const ReductionTask task = reduction_task(call, device_of(tensors), options.reduceOp);
        const auto root = static_cast<int>(options.rootRank);
        Staging staging;
        // Only the root's tensor changes.
        const Segment memory =
            rank_ == root ? staging.in_place(tensors[0]) : staging.input(tensors[0]);
        const int64_t elements = elements_in(memory, call.dtype);
        std::byte* const input = contribution(staging, memory, task, options.reduceOp);
        return reduce_by(call, reduce_steps(task, root, input, memory.data, elements),
                         {root, options.reduceOp.op_, 1, elements}, {tensors, tensors, {}, {}},
                         std::move(staging));
      });
}

c10::intrusive_ptr<c10d::Work> Backend::scatter_reduced(
    const Call& call, const std::vector<Segment>& inputs, const Segment& output,
    const c10d::ReduceOp& reduction, size_t tensors, Operands operands, Staging staging) {
  const ReductionTask task = reduction_task(call, device_of(operands.inputs), reduction);
  check_elements(call.site, "the output", elements_in(output, call.dtype),
                 elements_in(inputs[rank_], call.dtype), "the input for this rank has");
  std::vector<Segment> read = inputs;
  // Combining one element reads it from the own input before it writes it.
  if (read[rank_].data == output.data) read[rank_] = {};
  check_overlap(call.site, {output}, read);
  std::vector<std::byte*> memory;
  std::vector<int64_t> elements;
  for (const Segment& input : inputs) {
    memory.push_back(contribution(staging, input, task, reduction));
    elements.push_back(elements_in(input, call.dtype));
  }
  const int64_t total = std::accumulate(elements.begin(), elements.end(), int64_t{0});
  const Layout layout{-1, reduction.op_, static_cast<int>(tensors), total};
  return reduce_by(call,
                   reduce_scatter_steps(task, std::move(memory), std::move(elements), output.data),
                   layout, std::move(operands), std::move(staging));
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter(std::vector<at::Tensor>& outputs,
                                                       std::vector<std::vector<at::Tensor>>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  if (hands_on(outputs)) return device_reducer_->reduce_scatter(outputs, inputs, options);
  return collective(
      OpKind::kReduceScatter, dtype_of(outputs), options.timeout, options.asyncOp,
      [&](const Call& call) {
        check_count(call.site, "outputs", outputs.size(), 1, "the number of outputs must be");
        check_count(call.site, "input lists", inputs.size(), 1, "the number of lists must be");
        check_count(call.site, "inputs", inputs[0].size(), size_, "the size of the group is");
        check_output(call.site, outputs[0], "the output");
        check_tensors(call.site, inputs[0], "an input");
        check_dtypes(call.site, inputs[0], "an input", call.dtype, "the output");
        Staging staging;
        std::vector<Segment> memory;
        for (const at::Tensor& input : inputs[0]) memory.push_back(staging.input(input));
        const Segment output = staging.output(outputs[0]);
        return scatter_reduced(call, memory, output, options.reduceOp, 1,
                               {inputs[0], outputs, {}, {}}, std::move(staging));
      });
}

c10::intrusive_ptr<c10d::Work> Backend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  if (hands_on({output})) return device_reducer_->_reduce_scatter_base(output, input, options);
  return collective(OpKind::kReduceScatterTensor, dtype_of(input), options.timeout, options.asyncOp,
                    [&](const Call& call) {
                      check_tensor(call.site, input, "the input");
                      check_output(call.site, output, "the output");
                      check_dtype(call.site, output, "the output", call.dtype, "the input");
                      check_elements(call.site, "the input", input.numel(), output.numel() * size_,
                                     "the outputs of all ranks have");
                      Staging staging;
                      const Segment whole = staging.input(input);
                      std::vector<Segment> parts;
                      for (int rank = 0; rank < size_; ++rank)
                        parts.push_back(equal_part(whole, rank, size_));
                      const Segment memory = staging.output(output);
                      return scatter_reduced(call, parts, memory, options.reduceOp, 1,
                                             {{input}, {output}, {}, {}}, std::move(staging));
                    });
}

c10::intrusive_ptr<c10d::Work> Backend::reduce_scatter_tensor_coalesced(
    std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
    const c10d::ReduceScatterOptions& options) {
  if (hands_on(outputs)) {
    return device_reducer_->reduce_scatter_tensor_coalesced(outputs, inputs, options);
  }
  return collective(
      OpKind::kReduceScatterCoalesced, dtype_of(inputs), options.timeout, options.asyncOp,
      [&](const Call& call) {
        TORCH_CHECK_VALUE(!inputs.empty(), call.site, "got 0 inputs but needs at least 1");
        check_count(call.site, "outputs", outputs.size(), inputs.size(), "the number of inputs is");
        check_tensors(call.site, inputs, "an input");
        check_reduced_tensors(call.site, outputs, "an output", call.dtype);
        check_dtypes(call.site, inputs, "an input", call.dtype, "the first one");
        check_strided_overlap(call.site, outputs);
        for (size_t i = 0; i < inputs.size(); ++i) {
          check_elements(call.site, "an input", inputs[i].numel(), outputs[i].numel() * size_,
                         "its outputs on all ranks have");
        }
        Staging staging;
        const std::vector<Segment> memory = rank_by_rank(staging, inputs, size_);
        const Segment output = staging.flat_output(outputs);
        return scatter_reduced(call, memory, output, options.reduceOp, inputs.size(),
                               {inputs, outputs, {}, {}}, std::move(staging));
      });
}

}  // namespace freescale
