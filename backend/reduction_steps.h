#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/rank_order_reducer.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// A piece of a reduction that is exchanged and combined on its own, and the scratch memory it uses.
struct Block {
  int64_t index = 0;
  int slot = 0;  // 0 ... kBlocksInFlight - 1
};

// Blocks of one reduction that are under way at a time: while one is combined, others travel.
inline constexpr int kBlocksInFlight = 4;

// A reduction, cut into blocks, each of which takes one or two exchanges (stages) with local work
// after each. Computes addresses and combines; the pipeline that drives it does the rest. Calls for
// different slots may come at the same time from different threads. All ranks cut alike.
class ReductionSteps {
 public:
  virtual ~ReductionSteps() = default;
  // At least one, so that ranks meet (and notice if they disagree) even over empty tensors.
  virtual int64_t blocks() const = 0;
  virtual int stages() const = 0;
  // Adds the messages of one exchange to `plan`.
  virtual void plan_stage(const Block& block, int stage, Plan& plan) = 0;
  // The local work once that exchange is done. Throws what ATen throws.
  virtual void finish_stage(const Block& block, int stage) = 0;
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
