#include "cpp/balance/cost_order.h"

#include <algorithm>
#include <utility>

namespace freescale {

std::vector<int32_t> ascending_order(std::span<const int64_t> costs) {
  // Pairs, not indices alone: a comparison then touches no memory but the two.
  std::vector<std::pair<int64_t, int32_t>> keyed(costs.size());
  for (size_t i = 0; i < costs.size(); ++i) keyed[i] = {costs[i], static_cast<int32_t>(i)};
  std::sort(keyed.begin(), keyed.end());
  std::vector<int32_t> order(costs.size());
  std::transform(keyed.begin(), keyed.end(), order.begin(),
                 [](const auto& sample) { return sample.second; });
  return order;
}

}  // namespace freescale
