#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/exchange_steps.h"
#include "backend/rank_order_reducer.h"

namespace freescale {

// A reduction: after an exchange the contributions of the ranks are combined.
class ReductionSteps : public ExchangeSteps {
 public:
  // Where the contributions of others arrive.
  virtual const at::Tensor& scratch_memory() const = 0;
};

// What all reductions have in common on this rank.
struct ReductionTask {
  int rank = 0;
  int size = 1;
  Reduction reduction = Reduction::SUM;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  // Of all memory. Elsewhere than on the CPU there is one block of one stage: the local work is
  // done by kernels, and two exchanges with a kernel between them would make a thread wait.
  c10::Device device = at::kCPU;

  bool in_one_block() const { return !device.is_cpu(); }
  size_t element_bytes() const { return c10::elementSize(dtype); }
};

// `output` = the reduction of all ranks' `input`; the two may be the same memory. One exchange of
// everything for small tensors and on devices, reduce-scatter and all-gather by blocks for others.
std::unique_ptr<ReductionSteps> all_reduce_steps(const ReductionTask& task, std::byte* input,
                                                 std::byte* output, int64_t elements);

// The same, but `output` is written on `root` only, and may be null elsewhere.
std::unique_ptr<ReductionSteps> reduce_steps(const ReductionTask& task, int root, std::byte* input,
                                             std::byte* output, int64_t elements);

// `output` = the reduction of all ranks' `inputs[rank]`, which may be the same memory.
// `elements[r]` is the length of `inputs[r]`, on every rank.
std::unique_ptr<ReductionSteps> reduce_scatter_steps(const ReductionTask& task,
                                                     std::vector<std::byte*> inputs,
                                                     std::vector<int64_t> elements,
                                                     std::byte* output);

}  // namespace freescale
