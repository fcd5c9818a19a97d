#include "cpp/transport/emulated_nic.h"

#include <algorithm>

namespace freescale {

// Rounded up: the rate is never exceeded.
Nanoseconds EmulatedNic::time_of(size_t bytes) const {
  constexpr uint64_t kSecond = 1'000'000'000;
  // In two steps, or large sizes would overflow.
  const uint64_t seconds = bytes / rate_;
  const auto rest = static_cast<unsigned __int128>(bytes % rate_) * kSecond;
  return static_cast<Nanoseconds>(seconds * kSecond +
                                  static_cast<uint64_t>((rest + rate_ - 1) / rate_));
}

Nanoseconds EmulatedNic::transmit(size_t bytes, Nanoseconds since) {
  Nanoseconds begin = std::max(free_at_, since);
  // What was sent in between while the wire was free takes its time too.
  if (since >= interleaved_at_) begin = std::max(begin, interleaved_until_);
  free_at_ = begin + time_of(bytes);
  return free_at_;
}

void EmulatedNic::interleave(size_t bytes) {
  interleaved_at_ = now();
  interleaved_until_ = std::max(interleaved_until_, interleaved_at_) + time_of(bytes);
  // Not from now on: somebody who is late may have waited for the wire since it was free.
  free_at_ += time_of(bytes);
}

}  // namespace freescale
