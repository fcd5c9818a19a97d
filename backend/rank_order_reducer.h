#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace freescale {

using Reduction = c10d::ReduceOp::RedOpType;

// Name of a reduction as Python spells it: "SUM".
const char* reduction_name(Reduction reduction);

// Memory of a device as a tensor that does not own it.
at::Tensor view_memory(std::byte* data, int64_t count, c10::ScalarType dtype, c10::Device device);

// Combines the contributions of all ranks element by element, in the order of the ranks:
// ((c0 op c1) op c2) op ... So the result has the same bits on every rank, in every run, and
// however the elements were cut into blocks. Calls ATen, so every dtype ATen can combine is served.
//
// Half-precision sums, averages and products are accumulated in float32 and rounded once. AVG
// divides the sum at the end; for integers towards zero. For bool, SUM is "or" and PRODUCT "and".
// PREMUL_SUM counts as SUM: every rank has multiplied its contribution before (see premultiply).
//
// On a device it all happens when the current stream gets there.
class RankOrderReducer {
 public:
  RankOrderReducer(Reduction reduction, c10::ScalarType dtype, c10::Device device = at::kCPU);

  // Whether ATen has a kernel for it on the CPU. Tried once per pair, then remembered.
  static bool supports(Reduction reduction, c10::ScalarType dtype);

  // Writes the result for `count` elements to `out`. `out` may be the contribution of rank `own`;
  // the memory of the others may be overwritten.
  void reduce(std::byte* out, std::span<std::byte* const> contributions, size_t own,
              int64_t count) const;

 private:
  void reduce_in_dtype(const at::Tensor& out, std::vector<at::Tensor>& contributions,
                       size_t own) const;
  at::Tensor view(std::byte* data, int64_t count) const {
    return view_memory(data, count, dtype_, device_);
  }
  void reduce_in_float(const at::Tensor& out, const std::vector<at::Tensor>& contributions,
                       at::Tensor& accumulator) const;
  void divide(at::Tensor& sum, size_t ranks) const;
  bool accumulates_in_float(size_t ranks) const;
  void reduce_flat(std::byte* out, std::span<std::byte* const> contributions, size_t own,
                   int64_t count) const;

  const Reduction reduction_;
  const c10::ScalarType dtype_;
  const c10::Device device_;
};

// `tensor` times the factor of a PREMUL_SUM: what this rank contributes.
at::Tensor premultiply(const at::Tensor& tensor, const c10d::ReduceOp& reduction);

}  // namespace freescale
