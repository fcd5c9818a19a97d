#include "backend/bind_balance.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "cpp/balance/index_permutation.h"
#include "cpp/balance/planner.h"

namespace py = pybind11;

namespace freescale {
namespace {

// Arrays come as they are planned with: another dtype is an error, not a conversion.
template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
std::span<const T> view(const Array<T>& array, const char* name) {
  if (array.ndim() != 1) {
    throw py::value_error(std::string(name) + " must have one dimension, got " +
                          std::to_string(array.ndim()));
  }
  return {array.data(), static_cast<size_t>(array.size())};
}

template <typename T>
Array<T> to_array(const std::vector<T>& values) {
  return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T>
T unwrap(Result<T> result) {
  if (!result.ok()) throw py::value_error(result.status().message());
  return std::move(result.value());
}

GlobalBatch global_batch(const Array<int64_t>& costs, int world_size, bool equal_counts,
                         const std::optional<Array<int64_t>>& tokens, int64_t most_tokens) {
  GlobalBatch batch;
  batch.costs = view(costs, "costs");
  batch.world_size = world_size;
  batch.counts = equal_counts ? SampleCounts::kEqual : SampleCounts::kUneven;
  if (tokens) batch.tokens = view(*tokens, "tokens");
  batch.most_tokens = most_tokens;
  return batch;
}

Array<int64_t> permuted_indices(uint64_t size, uint64_t seed, uint64_t epoch, uint64_t first,
                                uint64_t count) {
  constexpr uint64_t kLargestSize = uint64_t{1} << 62;
  if (size < 1 || size > kLargestSize || count > size || first > size - count) {
    throw py::value_error("no " + std::to_string(count) + " elements from " +
                          std::to_string(first) + " in an order of " + std::to_string(size));
  }
  Array<int64_t> indices(static_cast<py::ssize_t>(count));
  const std::span<int64_t> elements(indices.mutable_data(), count);
  const py::gil_scoped_release release;
  IndexPermutation(size, seed, epoch).fill(first, elements);
  return indices;
}

std::pair<Array<int32_t>, int64_t> plan(const Array<int64_t>& costs, int world_size,
                                        bool equal_counts,
                                        const std::optional<Array<int64_t>>& tokens,
                                        int64_t most_tokens) {
  const GlobalBatch batch = global_batch(costs, world_size, equal_counts, tokens, most_tokens);
  const BalancePlan found = unwrap([&] {
    const py::gil_scoped_release release;
    return plan_balance(batch);
  }());
  return {to_array(found.ranks), found.floor};
}

Array<int32_t> rebalanced(const Array<int64_t>& costs, int world_size, const Array<int32_t>& ranks,
                          int64_t target, bool equal_counts,
                          const std::optional<Array<int64_t>>& tokens, int64_t most_tokens) {
  const GlobalBatch batch = global_batch(costs, world_size, equal_counts, tokens, most_tokens);
  const std::span<const int32_t> before = view(ranks, "ranks");
  return to_array(unwrap([&] {
    const py::gil_scoped_release release;
    return rebalance(batch, before, target);
  }()));
}

}  // namespace

void bind_balance(py::module_& module) {
  module.def("permuted_indices", &permuted_indices, py::arg("size"), py::arg("seed"),
             py::arg("epoch"), py::arg("first"), py::arg("count"),
             "Elements first to first + count - 1 of a shuffled order of size elements.");
  module.def("plan_balance", &plan, py::arg("costs").noconvert(), py::arg("world_size"),
             py::arg("equal_counts"), py::arg("tokens").noconvert() = py::none(),
             py::arg("most_tokens") = 0,
             "The rank of each sample of a global batch, and the least load that the heaviest rank "
             "can have.");
  module.def(
      "rebalance", &rebalanced, py::arg("costs").noconvert(), py::arg("world_size"),
      py::arg("ranks").noconvert(), py::arg("target"), py::arg("equal_counts"),
      py::arg("tokens").noconvert() = py::none(), py::arg("most_tokens") = 0,
      "The new rank of each sample after moving few of them, so that no rank bears more than "
      "target.");
}

}  // namespace freescale
