#pragma once

#include <algorithm>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"

namespace freescale {

// Work waiting for its next chunk, by urgency and then by age. `T` has `int level` (0 is urgent)
// and `uint64_t serial` (smaller is older). Not owned. Belongs to the holder of the progress lock.
template <typename T>
class LevelQueue {
 public:
  void add(T* item, Nanoseconds now) {
    Level& level = levels_[item->level];
    if (level.items.empty()) level.served = now;
    const auto older = [](const T* a, const T* b) { return a->serial < b->serial; };
    level.items.insert(std::upper_bound(level.items.begin(), level.items.end(), item, older), item);
    ++size_;
  }

  bool empty() const { return size_ == 0; }
  // The oldest item of the level, or null.
  T* front(int level) const {
    const auto& items = levels_[level].items;
    return items.empty() ? nullptr : items.front();
  }
  // The front of the level got a chunk: the level does not starve.
  void served(int level, Nanoseconds now) { levels_[level].served = now; }

  void pop(int level) {
    auto& items = levels_[level].items;
    items.erase(items.begin());
    --size_;
  }

  // While chunks of `served_level` move: a less urgent level that got no chunk for `aging` starves,
  // and its oldest item climbs one level and stays there. Only the oldest, and only when the whole
  // level starves: work that merely queues behind its own kind must not come to compete with urgent
  // traffic.
  void age(int served_level, Nanoseconds now, Nanoseconds aging) {
    for (int level = served_level + 1; level < kPriorityLevels; ++level) {
      if (levels_[level].items.empty() || now - levels_[level].served < aging) continue;
      T* item = front(level);
      pop(level);
      levels_[level].served = now;
      --item->level;
      add(item, now);
    }
  }

  template <typename Predicate>
  void remove_if(Predicate predicate) {
    for (Level& level : levels_) size_ -= std::erase_if(level.items, predicate);
  }

 private:
  struct Level {
    std::vector<T*> items;
    Nanoseconds served = 0;
  };
  Level levels_[kPriorityLevels];
  size_t size_ = 0;
};

}  // namespace freescale
