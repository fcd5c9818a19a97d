#include "cpp/balance/index_permutation.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

std::vector<int64_t> whole_order(uint64_t size, uint64_t seed, uint64_t epoch) {
  std::vector<int64_t> order(size, -1);
  IndexPermutation(size, seed, epoch).fill(0, order);
  return order;
}

TEST(index_permutation_has_every_element_once) {
  for (uint64_t size = 1; size <= 300; ++size) {
    std::vector<int64_t> order = whole_order(size, 7, size % 3);
    std::sort(order.begin(), order.end());
    std::vector<int64_t> expected(size);
    std::iota(expected.begin(), expected.end(), 0);
    CHECK_EQ(order, expected);
  }
}

TEST(index_permutation_any_piece_is_that_of_the_whole) {
  const std::vector<int64_t> order = whole_order(1000, 1, 2);
  const IndexPermutation permutation(1000, 1, 2);
  for (const uint64_t first : {0u, 1u, 499u, 990u}) {
    std::vector<int64_t> piece(10);
    permutation.fill(first, piece);
    CHECK(std::equal(piece.begin(), piece.end(), order.begin() + static_cast<ptrdiff_t>(first)));
    CHECK_EQ(static_cast<int64_t>(permutation.at(first)), piece[0]);
  }
}

TEST(index_permutation_differs_by_seed_and_by_epoch) {
  const std::vector<int64_t> order = whole_order(1000, 1, 2);
  CHECK_EQ(whole_order(1000, 1, 2), order);
  CHECK_NE(whole_order(1000, 2, 2), order);
  CHECK_NE(whole_order(1000, 1, 3), order);
  CHECK_NE(whole_order(1000, 2, 1), order);
}

TEST(index_permutation_reaches_the_largest_sizes) {
  constexpr uint64_t kSize = uint64_t{1} << 62;
  const IndexPermutation permutation(kSize, 0, 0);
  for (const uint64_t position : {uint64_t{0}, uint64_t{1}, kSize / 2, kSize - 1}) {
    CHECK_LT(permutation.at(position), kSize);
  }
  CHECK_NE(permutation.at(0), permutation.at(1));
}

}  // namespace
}  // namespace freescale
