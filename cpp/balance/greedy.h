#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace freescale {

// Deals the samples out from the dearest to the cheapest, each to the rank with the least load so
// far (Graham 1969, longest processing time first); of equal loads to the rank with fewer samples,
// then to the lower one. A rank that holds `most` samples gets no more; world_size * most must be
// at least the number of samples.
//
// `order` is ascending_order(costs). Returns the rank of each sample.
std::vector<int32_t> assign_greedily(std::span<const int64_t> costs, std::span<const int32_t> order,
                                     int world_size, int64_t most);

}  // namespace freescale
