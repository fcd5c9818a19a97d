#include "cpp/transport/ucx/window_search.h"

namespace freescale::ucx {

void WindowSearch::note_taken(size_t bytes, Nanoseconds busy, size_t window) {
  bytes_ += bytes;
  busy_ += busy;
  if (busy_ < kPeriod || bytes_ < kWindows * window) return;
  end_period(static_cast<double>(bytes_) / static_cast<double>(busy_), window);
  bytes_ = 0;
  busy_ = 0;
}

// `window`: of this period.
void WindowSearch::end_period(double rate, size_t window) {
  if (tried_ == settled_) {
    settled_rate_ = rate;
    if (pause_ > 0) {
      --pause_;
    } else {
      begin_trial();
    }
    return;
  }
  const bool larger = tried_ > settled_;
  const bool too_long =
      larger && static_cast<double>(window) > rate * static_cast<double>(kLongestWait);
  if (rate >= settled_rate_ * (larger ? kGain : kLoss) && !too_long) {
    settled_ = tried_;
    settled_rate_ = rate;
    return begin_trial();  // on in that direction
  }
  tried_ = settled_;
  direction_ = -direction_;
  pause_ = kPause;
}

void WindowSearch::begin_trial() {
  if (settled_ + direction_ < 0) direction_ = 1;
  if (settled_ + direction_ > kMostDoublings) direction_ = -1;
  tried_ = settled_ + direction_;
}

}  // namespace freescale::ucx
