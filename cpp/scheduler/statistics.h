#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// Totals of one operation kind at one priority since the start or the last reset.
struct OpStatistics {
  OpKind op = OpKind::kNone;
  Priority priority = Priority::kNormal;
  uint64_t calls = 0;
  uint64_t bytes_sent = 0;      // to other ranks; local copies are not counted
  uint64_t bytes_received = 0;  // from other ranks
  Nanoseconds blocked = 0;      // callers' time inside wait()
  Nanoseconds in_flight = 0;    // from the call to completion

  // Of the same operation and priority.
  OpStatistics& operator+=(const OpStatistics& more);
};

// What has travelled between this rank and another one since the start or the last reset.
struct LinkStatistics {
  int peer = 0;                 // of all ranks
  uint64_t bytes_sent = 0;      // payloads, as in OpStatistics
  uint64_t bytes_received = 0;  // likewise

  // With the same peer.
  LinkStatistics& operator+=(const LinkStatistics& more);
};

// Thread-safe counters. The engine counts bytes; the layer that knows what the user called counts
// calls, blocked and in-flight time (an all_reduce is several exchanges but one call).
class Statistics {
 public:
  void count_call(OpKind op, Priority priority);
  // Of one operation; a peer may come several times.
  void count_bytes(OpKind op, Priority priority, std::span<const LinkStatistics> moved);
  void count_blocked(OpKind op, Priority priority, Nanoseconds time);
  void count_in_flight(OpKind op, Priority priority, Nanoseconds time);
  // Only the cells that were used, by op and priority.
  std::vector<OpStatistics> snapshot() const;
  // Only the peers that something was sent to or received from, by rank.
  std::vector<LinkStatistics> links() const;
  void reset();

 private:
  OpStatistics& cell(OpKind op, Priority priority);

  mutable std::mutex mutex_;
  OpStatistics cells_[static_cast<int>(OpKind::kCount)][kPriorityLevels];
  std::map<int, LinkStatistics> links_;  // by peer
};

}  // namespace freescale
