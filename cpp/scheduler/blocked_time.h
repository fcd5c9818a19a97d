#pragma once

#include <span>
#include <vector>

#include "cpp/scheduler/event_log.h"

namespace freescale {

// For how long calls of one operation at one priority have kept a thread.
struct BlockedTime {
  OpKind op = OpKind::kNone;
  Priority priority = Priority::kNormal;
  Nanoseconds stragglers = 0;     // until the last of the ranks that it waited for had called
  Nanoseconds communication = 0;  // from then on
};

// A stretch of a thread's time.
struct Stretch {
  uint64_t thread = 0;
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
};

// What of a thread's time its waits took, and the waits of the threads that it joined while it did.
// Waits of one thread do not overlap, and the stretches must not, so neither do the times that are
// added up here. By operation and priority.
std::vector<BlockedTime> blocked_time(const std::vector<Event>& events,
                                      std::span<const Stretch> stretches);

}  // namespace freescale
