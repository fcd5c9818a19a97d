#include "cpp/balance/peak_reducer.h"

#include <algorithm>
#include <cstdlib>

#include "cpp/balance/cost_order.h"

namespace freescale {

PeakReducer::PeakReducer(std::span<const int64_t> costs, std::span<const int32_t> order,
                         std::span<int32_t> ranks, int world_size, Counts counts,
                         std::optional<Limit> limit)
    : ranks_(ranks),
      counts_(counts),
      limit_(limit),
      held_(world_size),
      loads_(world_size),
      amounts_(world_size) {
  for (const int32_t sample : order) {
    const int32_t rank = ranks[sample];
    held_[rank].push_back({costs[sample], sample});
    loads_[rank] += costs[sample];
    if (limit_) amounts_[rank] += limit_->amounts[sample];
  }
}

void PeakReducer::reduce(int64_t target) {
  for (size_t exchanges = 0; exchanges < ranks_.size(); ++exchanges) {
    const auto heaviest = std::max_element(loads_.begin(), loads_.end());
    if (*heaviest <= target) return;
    if (!relieve(static_cast<int32_t>(heaviest - loads_.begin()))) return;
  }
}

// Tries the lightest rank first, and hardly ever needs another one.
bool PeakReducer::relieve(int32_t heavy) {
  const auto lightest = std::min_element(loads_.begin(), loads_.end());
  if (exchange(heavy, static_cast<int32_t>(lightest - loads_.begin()))) return true;
  const std::vector<int32_t> by_load = ascending_order(loads_);
  return std::any_of(by_load.begin() + 1, by_load.end(),
                     [&](int32_t light) { return exchange(heavy, light); });
}

bool PeakReducer::exchange(int32_t heavy, int32_t light) {
  const std::optional<Exchange> best = best_exchange(heavy, light);
  if (!best) return false;
  // The taken one first: what is given then joins a list whose places are no longer needed.
  if (best->taken) {
    const Sample given = held_[heavy][best->given];
    move(*best->taken, light, heavy);
    const auto& list = held_[heavy];
    const auto place = std::lower_bound(list.begin(), list.end(), given);
    move(static_cast<size_t>(place - list.begin()), heavy, light);
  } else {
    move(best->given, heavy, light);
  }
  return true;
}

// Giving `shift` more than is taken leaves the two ranks |gap - 2 * shift| apart; less than before
// if and only if 0 < shift < gap. For each sample that could be given only the two that lie around
// the ideal return are looked at; both lists ascend, so one pass over each is enough.
std::optional<PeakReducer::Exchange> PeakReducer::best_exchange(int32_t heavy,
                                                                int32_t light) const {
  const std::vector<Sample>& from = held_[heavy];
  const std::vector<Sample>& to = held_[light];
  const int64_t gap = loads_[heavy] - loads_[light];
  int64_t best_apart = gap;
  std::optional<Exchange> best;
  const auto consider = [&](size_t given, std::optional<size_t> taken) {
    const int64_t shift = from[given].cost - (taken ? to[*taken].cost : 0);
    const int64_t apart = std::abs(gap - 2 * shift);
    if (apart >= best_apart) return;
    const auto taken_sample = taken ? std::optional(to[*taken].index) : std::nullopt;
    if (!fits(heavy, light, from[given].index, taken_sample)) return;
    best_apart = apart;
    best = Exchange{given, taken};
  };
  const bool may_only_give = counts_ == Counts::kFree && from.size() > 1;
  size_t above = 0;  // the first in `to` that is dearer than the ideal return
  for (size_t given = 0; given < from.size(); ++given) {
    const int64_t twice_ideal = 2 * from[given].cost - gap;
    while (above < to.size() && 2 * to[above].cost <= twice_ideal) ++above;
    if (may_only_give) consider(given, std::nullopt);
    if (above > 0) consider(given, above - 1);
    if (above < to.size()) consider(given, above);
  }
  return best;
}

bool PeakReducer::fits(int32_t heavy, int32_t light, int32_t given,
                       std::optional<int32_t> taken) const {
  if (!limit_) return true;
  const int64_t shift = limit_->amounts[given] - (taken ? limit_->amounts[*taken] : 0);
  return amounts_[heavy] - shift <= limit_->most && amounts_[light] + shift <= limit_->most;
}

void PeakReducer::move(size_t place, int32_t from, int32_t to) {
  const Sample sample = held_[from][place];
  held_[from].erase(held_[from].begin() + static_cast<std::ptrdiff_t>(place));
  held_[to].insert(std::lower_bound(held_[to].begin(), held_[to].end(), sample), sample);
  loads_[from] -= sample.cost;
  loads_[to] += sample.cost;
  if (limit_) {
    amounts_[from] -= limit_->amounts[sample.index];
    amounts_[to] += limit_->amounts[sample.index];
  }
  ranks_[sample.index] = to;
}

}  // namespace freescale
