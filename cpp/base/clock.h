#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace freescale {

// All times inside the engine are nanoseconds of CLOCK_MONOTONIC.
using Nanoseconds = int64_t;

inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A point in time, or never.
class Deadline {
 public:
  static Deadline never() { return Deadline(std::numeric_limits<Nanoseconds>::max()); }
  static Deadline after(std::chrono::nanoseconds span) {
    const Nanoseconds now = now_ns();
    const Nanoseconds room = std::numeric_limits<Nanoseconds>::max() - now;
    return Deadline(span.count() >= room ? std::numeric_limits<Nanoseconds>::max()
                                         : now + span.count());
  }
  static Deadline at(Nanoseconds time) { return Deadline(time); }

  bool is_never() const { return time_ == std::numeric_limits<Nanoseconds>::max(); }
  bool passed(Nanoseconds now) const { return now >= time_; }
  Nanoseconds time() const { return time_; }
  // Zero when passed.
  std::chrono::nanoseconds left() const {
    const Nanoseconds left = is_never() ? time_ : time_ - now_ns();
    return std::chrono::nanoseconds(left > 0 ? left : 0);
  }
  friend bool operator<(Deadline a, Deadline b) { return a.time_ < b.time_; }

 private:
  explicit Deadline(Nanoseconds time) : time_(time) {}
  Nanoseconds time_;
};

}  // namespace freescale
