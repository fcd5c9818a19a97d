#pragma once

#include "cpp/scheduler/event_log.h"

namespace freescale::testing {

inline constexpr uint64_t kTrainer = 7;  // a thread

// A thread's wait for a call whose last rank had come at `ready`.
inline Event wait(Nanoseconds begin, Nanoseconds ready, Nanoseconds end, uint64_t thread = kTrainer,
                  Priority priority = Priority::kNormal, OpKind op = OpKind::kAllReduce) {
  Event event;
  event.kind = EventKind::kWait;
  event.op = op;
  event.priority = priority;
  event.thread = thread;
  event.begin = begin;
  event.ready = ready;
  event.end = end;
  return event;
}

}  // namespace freescale::testing
