#pragma once

#include <cstddef>

#include "cpp/base/clock.h"

namespace freescale::ucx {

// By how much a window has to be larger than rate and delay of the wire ask for, found by trial. A
// peer that gets its core late takes what has come late and tells of it late, and no time that is
// measured here tells that from a wire that is busy: with ten busy processes on two cores, a window
// of twice that product carried a quarter of what plain TCP, whose sockets hold megabytes, carried
// on a link of 2 Gbit/s; 16 times as much carried 0.87 of it.
//
// Twice the window for a while: it stays if much more comes through, and if it is no more than what
// comes through in kLongestWait, because an urgent chunk may wait for so much. Half of it: likewise
// if hardly less comes through.
class WindowSearch {
 public:
  // The window is 2 to this power times as large.
  int doublings() const { return tried_; }
  // So many bytes were taken while some were on their way for `busy`; `window`: its size now.
  void note_taken(size_t bytes, Nanoseconds busy, size_t window);

 private:
  static constexpr int kMostDoublings = 6;
  // A trial takes several ticks of a kernel of 250 Hz, and several windows.
  static constexpr Nanoseconds kPeriod = 16'000'000;
  static constexpr size_t kWindows = 8;
  // What a larger window must bring, and what a smaller one may cost.
  static constexpr double kGain = 1.2;
  static constexpr double kLoss = 0.9;
  // Three ticks: the receiver sleeps for one, the sender for another, and the bytes come between.
  static constexpr Nanoseconds kLongestWait = 12'000'000;
  // Periods between trials that changed nothing.
  static constexpr int kPause = 8;

  void end_period(double rate, size_t window);
  void begin_trial();

  int settled_ = 0;
  int tried_ = 0;  // the same between trials
  double settled_rate_ = 0;
  int direction_ = 1;  // of the next trial
  int pause_ = 0;
  size_t bytes_ = 0;  // of this period
  Nanoseconds busy_ = 0;
};

}  // namespace freescale::ucx
