#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace freescale {

// The samples' indices from the cheapest to the dearest, equal costs in ascending order of index:
// the one order that all decisions of the planner follow, so that all ranks decide alike.
std::vector<int32_t> ascending_order(std::span<const int64_t> costs);

}  // namespace freescale
