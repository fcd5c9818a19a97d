#include <algorithm>

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend/backend.h"

namespace freescale {
c10::intrusive_ptr<c10d::Backend> Backend::split(
    const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) return nullptr;
  // The store that torch hands over is named after a count of this process's groups, which differs
  // between ranks that are in different groups. What the members do agree on is the parent, the
  // list of members, and how often that list was split off before.
  int earlier = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    earlier = splits_[ranks]++;
  }
  split_count_.fetch_add(1);
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      "split/" + c10::Join("_", ranks) + "/" + std::to_string(earlier), store_);
  auto chosen = c10::dynamic_intrusive_pointer_cast<BackendOptions>(options);
  auto settings = c10::make_intrusive<BackendOptions>(chosen ? *chosen : *options_);
  if (options && !chosen) {
    settings->timeout = options->timeout;
    settings->group_name = options->group_name;
  }
  return c10::make_intrusive<Backend>(store, static_cast<int>(place - ranks.begin()),
                                      static_cast<int>(ranks.size()), settings);
}

}  // namespace freescale
