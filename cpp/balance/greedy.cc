#include "cpp/balance/greedy.h"

#include <compare>
#include <ranges>

namespace freescale {
namespace {

struct RankLoad {
  int64_t load;
  int64_t samples;
  int32_t rank;

  auto operator<=>(const RankLoad&) const = default;
};

// Restores the heap, least first, after its first element has grown. Half the work of a pop and a
// push.
void sink_first(std::vector<RankLoad>& heap) {
  const RankLoad grown = heap.front();
  size_t hole = 0;
  for (size_t child = 1; child < heap.size(); child = 2 * hole + 1) {
    if (child + 1 < heap.size() && heap[child + 1] < heap[child]) ++child;
    if (grown < heap[child]) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = grown;
}

}  // namespace

std::vector<int32_t> assign_greedily(std::span<const int64_t> costs, std::span<const int32_t> order,
                                     int world_size, int64_t most) {
  std::vector<RankLoad> heap;
  for (int32_t rank = 0; rank < world_size; ++rank) heap.push_back({0, 0, rank});
  std::vector<int32_t> ranks(costs.size());
  for (const int32_t sample : std::views::reverse(order)) {
    RankLoad& lightest = heap.front();
    ranks[sample] = lightest.rank;
    lightest.load += costs[sample];
    if (++lightest.samples == most) {
      lightest = heap.back();
      heap.pop_back();
    }
    if (!heap.empty()) sink_first(heap);
  }
  return ranks;
}

}  // namespace freescale
