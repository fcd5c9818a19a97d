#include "backend/rank_order_reducer.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include "backend/plain_dispatch.h"

namespace freescale {
namespace {

// Elements combined at a time over all ranks: the partial result stays in the L2 cache (128 KiB of
// float32), and ATen, whose grain is this size, uses no second thread. More would fight for the
// cores with the threads that move bytes. A device combines all at once.
constexpr int64_t kElementsAtOnce = 32768;

constexpr int kReductions = static_cast<int>(Reduction::UNUSED);
constexpr int kScalarTypes = static_cast<int>(c10::ScalarType::NumOptions);

void combine(Reduction reduction, at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  switch (reduction) {
    case Reduction::SUM:
    case Reduction::AVG:
    case Reduction::PREMUL_SUM:
      at::add_out(out, a, b);
      return;
    case Reduction::PRODUCT:
      at::mul_out(out, a, b);
      return;
    case Reduction::MIN:
      at::minimum_out(out, a, b);
      return;
    case Reduction::MAX:
      at::maximum_out(out, a, b);
      return;
    case Reduction::BAND:
      at::bitwise_and_out(out, a, b);
      return;
    case Reduction::BOR:
      at::bitwise_or_out(out, a, b);
      return;
    case Reduction::BXOR:
      at::bitwise_xor_out(out, a, b);
      return;
    case Reduction::UNUSED:
      break;
  }
  TORCH_CHECK(false, "no such reduction: ", static_cast<int>(reduction));
}

bool try_once(Reduction reduction, c10::ScalarType dtype) {
  if (reduction == Reduction::AVG && dtype == at::kBool) return false;
  if (reduction == Reduction::PREMUL_SUM && !at::isFloatingType(dtype)) return false;
  try {
    const PlainDispatch guard;
    at::Tensor one = at::ones({1}, at::TensorOptions(at::kCPU).dtype(dtype));
    at::Tensor other = one.clone();
    std::array contributions = {static_cast<std::byte*>(one.mutable_data_ptr()),
                                static_cast<std::byte*>(other.mutable_data_ptr())};
    RankOrderReducer(reduction, dtype).reduce(contributions[0], contributions, 0, 1);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

const char* reduction_name(Reduction reduction) {
  constexpr const char* kNames[] = {"SUM",  "AVG", "PRODUCT", "MIN",       "MAX",
                                    "BAND", "BOR", "BXOR",    "PREMUL_SUM"};
  const auto index = static_cast<size_t>(reduction);
  return index < std::size(kNames) ? kNames[index] : "UNUSED";
}

at::Tensor view_memory(std::byte* data, int64_t count, c10::ScalarType dtype, c10::Device device) {
  // Told whose memory it is: else ATen would ask the driver.
  return at::for_blob(data, {count})
      .options(at::TensorOptions(device).dtype(dtype))
      .target_device(device)
      .make_tensor();
}

RankOrderReducer::RankOrderReducer(Reduction reduction, c10::ScalarType dtype, c10::Device device)
    : reduction_(reduction), dtype_(dtype), device_(device) {}

bool RankOrderReducer::supports(Reduction reduction, c10::ScalarType dtype) {
  enum : int8_t { kUnknown, kYes, kNo };
  static std::array<std::atomic<int8_t>, static_cast<size_t>(kReductions * kScalarTypes)> known{};
  const int row = static_cast<int>(reduction);
  const int column = static_cast<int>(dtype);
  if (row >= kReductions || column >= kScalarTypes) return false;
  std::atomic<int8_t>& entry = known[row * kScalarTypes + column];
  if (entry.load(std::memory_order_relaxed) == kUnknown) {
    entry.store(try_once(reduction, dtype) ? kYes : kNo, std::memory_order_relaxed);
  }
  return entry.load(std::memory_order_relaxed) == kYes;
}

bool RankOrderReducer::accumulates_in_float(size_t ranks) const {
  if (!at::isReducedFloatingType(dtype_)) return false;
  switch (reduction_) {
    case Reduction::AVG:
      return true;
    // One operation: ATen computes it in float32 and rounds once anyway.
    case Reduction::SUM:
    case Reduction::PREMUL_SUM:
    case Reduction::PRODUCT:
      return ranks > 2;
    default:
      return false;
  }
}

void RankOrderReducer::divide(at::Tensor& sum, size_t ranks) const {
  if (reduction_ != Reduction::AVG) return;
  const auto divisor = static_cast<int64_t>(ranks);
  if (at::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
    sum.div_(divisor, "trunc");
  } else {
    sum.div_(divisor);
  }
}

void RankOrderReducer::reduce_in_dtype(const at::Tensor& out,
                                       std::vector<at::Tensor>& contributions, size_t own) const {
  // Until the own contribution has been read, `out` may hold it: the partial result of the ranks
  // below lies in the memory of rank 0's.
  at::Tensor partial = contributions[0];
  at::Tensor target = out;
  for (size_t rank = 1; rank < contributions.size(); ++rank) {
    at::Tensor& to = rank < own ? contributions[0] : target;
    combine(reduction_, to, partial, contributions[rank]);
    partial = to;
  }
  divide(target, contributions.size());
}

void RankOrderReducer::reduce_in_float(const at::Tensor& out,
                                       const std::vector<at::Tensor>& contributions,
                                       at::Tensor& accumulator) const {
  accumulator.copy_(contributions[0]);
  for (size_t rank = 1; rank < contributions.size(); ++rank) {
    combine(reduction_, accumulator, accumulator, contributions[rank]);
  }
  divide(accumulator, contributions.size());
  out.copy_(accumulator);
}

void RankOrderReducer::reduce_flat(std::byte* out, std::span<std::byte* const> contributions,
                                   size_t own, int64_t count) const {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype_));
  const bool in_float = accumulates_in_float(contributions.size());
  const int64_t at_once = device_.is_cpu() ? std::min(count, kElementsAtOnce) : count;
  at::Tensor accumulator;
  if (in_float) accumulator = at::empty({at_once}, at::TensorOptions(device_).dtype(at::kFloat));
  std::vector<at::Tensor> pieces(contributions.size());
  for (int64_t begin = 0; begin < count; begin += at_once) {
    const int64_t length = std::min(count - begin, at_once);
    for (size_t rank = 0; rank < pieces.size(); ++rank) {
      pieces[rank] = view(contributions[rank] + begin * element, length);
    }
    const at::Tensor target = view(out + begin * element, length);
    if (in_float) {
      at::Tensor part = accumulator.narrow(0, 0, length);
      reduce_in_float(target, pieces, part);
    } else {
      reduce_in_dtype(target, pieces, own);
    }
  }
}

void RankOrderReducer::reduce(std::byte* out, std::span<std::byte* const> contributions, size_t own,
                              int64_t count) const {
  if (count == 0) return;
  const PlainDispatch guard;
  if (contributions.size() == 1) {
    if (out != contributions[0]) view(out, count).copy_(view(contributions[0], count));
    return;
  }
  reduce_flat(out, contributions, own, count);
}

at::Tensor premultiply(const at::Tensor& tensor, const c10d::ReduceOp& reduction) {
  const auto supplement =
      c10::dynamic_intrusive_pointer_cast<c10d::NCCLPreMulSumSupplement>(reduction.supplement_);
  TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM comes without its factor");
  const PlainDispatch guard;
  const at::Tensor product =
      supplement->tensor_factor.defined()
          ? at::mul(tensor, supplement->tensor_factor.to(tensor.device(), tensor.scalar_type()))
          : at::mul(tensor, at::Scalar(supplement->double_factor));
  return product.contiguous();
}

}  // namespace freescale
