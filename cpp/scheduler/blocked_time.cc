#include "cpp/scheduler/blocked_time.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace freescale {
namespace {

using Totals = std::map<std::pair<OpKind, Priority>, BlockedTime>;

void add_wait(Totals& totals, const Event& wait, const Stretch& stretch) {
  const Nanoseconds begin = std::max(wait.begin, stretch.begin);
  const Nanoseconds end = std::min(wait.end, stretch.end);
  if (end <= begin) return;
  const Nanoseconds ready = std::clamp(wait.ready, begin, end);
  BlockedTime& total = totals[{wait.op, wait.priority}];
  total.stragglers += ready - begin;
  total.communication += end - ready;
}

void add_waits(Totals& totals, const std::vector<Event>& events, const Stretch& stretch) {
  for (const Event& event : events) {
    if (event.kind == EventKind::kWait && event.thread == stretch.thread) {
      add_wait(totals, event, stretch);
    }
  }
}

}  // namespace

std::vector<BlockedTime> blocked_time(const std::vector<Event>& events,
                                      std::span<const Stretch> stretches) {
  Totals totals;
  for (const Stretch& stretch : stretches) {
    add_waits(totals, events, stretch);
    for (const Event& event : events) {
      if (event.kind != EventKind::kJoin || event.thread != stretch.thread) continue;
      add_waits(
          totals, events,
          {event.joined, std::max(event.begin, stretch.begin), std::min(event.end, stretch.end)});
    }
  }
  std::vector<BlockedTime> times;
  for (auto& [key, total] : totals) {
    std::tie(total.op, total.priority) = key;
    times.push_back(total);
  }
  return times;
}

}  // namespace freescale
