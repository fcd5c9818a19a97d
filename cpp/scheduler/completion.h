#pragma once

#include <atomic>
#include <cstdint>

#include "cpp/base/futex.h"

namespace freescale {

// A one-shot event that threads inside Engine::wait() wait for. set() may come from any thread; the
// object must outlive it, so share its ownership with the code that sets it.
class Completion {
 public:
  bool is_set() const { return state_.load(std::memory_order_acquire) == kSet; }

  void set() {
    if (state_.exchange(kSet, std::memory_order_acq_rel) == kSleeping) futex_wake_all(state_);
  }

  // Sleeps until set or until `timeout_ns` passed (negative: no limit); may return early. Moves no
  // bytes: only for a thread that knows that another one does.
  void sleep(int64_t timeout_ns) {
    uint32_t state = kPending;
    state_.compare_exchange_strong(state, kSleeping, std::memory_order_acq_rel);
    if (state != kSet) futex_wait(state_, kSleeping, timeout_ns);
  }

 private:
  static constexpr uint32_t kPending = 0;
  static constexpr uint32_t kSleeping = 1;  // somebody may sleep on the word
  static constexpr uint32_t kSet = 2;
  std::atomic<uint32_t> state_{kPending};
};

}  // namespace freescale
