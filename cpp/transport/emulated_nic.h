#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/base/clock.h"

namespace freescale {

// The sending side of a network card of a given rate, where there is none: one for the process, so
// that all its links share the rate. It counts the time that bytes would take on the wire and moves
// none. A token bucket without a burst: a chunk pays before it goes, and what goes unpaid, a record
// between the packets of a chunk, holds up what comes after it.
//
// Only what leaves is limited. Many senders to one receiver together exceed the rate there, which
// exchanges in which all ranks receive alike never do.
//
// Belongs to the holder of the progress lock.
class EmulatedNic {
 public:
  using Clock = Nanoseconds (*)();

  // `bytes_per_second` is not 0.
  explicit EmulatedNic(uint64_t bytes_per_second, Clock clock = now_ns)
      : rate_(bytes_per_second), clock_(clock) {}

  uint64_t rate() const { return rate_; }
  Nanoseconds now() const { return clock_(); }
  // When all that was given to it is out.
  Nanoseconds free_at() const { return free_at_; }

  // Sends behind all the rest, but not before `since`, when the caller first wanted to; returns
  // when the last byte is out. A `since` in the past makes up for who comes late to a wire that is
  // free.
  Nanoseconds transmit(size_t bytes, Nanoseconds since);

  // Sends at once, in between.
  void interleave(size_t bytes);
  // Whether so much has been sent in between lately that more would be faster than the rate.
  bool interleaved_too_much() const { return interleaved_until_ - now() > time_of(kInterleaved); }

 private:
  // A few packets.
  static constexpr size_t kInterleaved = 4 << 10;

  Nanoseconds time_of(size_t bytes) const;

  const uint64_t rate_;
  const Clock clock_;
  Nanoseconds free_at_ = 0;
  Nanoseconds interleaved_at_ = 0;     // the last time
  Nanoseconds interleaved_until_ = 0;  // as if nothing else had been sent
};

}  // namespace freescale
