#pragma once

#include <atomic>
#include <cstdint>

#include "cpp/base/futex.h"

namespace freescale {

// How one process tells another that there is something for it, without a system call while the
// other one is awake. Lies in shared memory: one for each process, rung by all its peers.
//
// The sleeper announces itself (prepare), looks once more for work, and sleeps (sleep). The ringer
// publishes its work and then looks for announced sleepers. Both put a full fence between their two
// steps, so at least one of them sees the other.
class Doorbell {
 public:
  // Who sleeps; also the wake mask. A caller inside wait() is woken in preference to the engine
  // thread: it moves the bytes itself and needs no second switch.
  static constexpr uint32_t kCaller = 1;
  static constexpr uint32_t kEngine = 2;

  // Before the last look for work. Returns the ticket for sleep(). Without `wants_events` only
  // ring_always() wakes this sleeper.
  uint32_t prepare(uint32_t who, bool wants_events) {
    const uint32_t ticket = rings_.load(std::memory_order_acquire);
    if (wants_events) sleepers(who).fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return ticket;
  }
  void sleep(uint32_t ticket, uint32_t who, int64_t timeout_ns) {
    futex_wait(rings_, ticket, timeout_ns, who);
  }
  // Takes the announcement back, after sleep() or instead of it.
  void finish(uint32_t who) { sleepers(who).fetch_sub(1, std::memory_order_relaxed); }

  // Wakes who was announced; no system call when nobody was.
  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (caller_waits()) {
      ring_always(kCaller);
    } else if (sleeping_engines_.load(std::memory_order_relaxed) != 0) {
      ring_always(kEngine);
    }
  }
  // Wakes sleepers of the given kinds, announced or not.
  void ring_always(uint32_t who) {
    rings_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake_all(rings_, who);
  }
  bool caller_waits() const { return sleeping_callers_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<uint32_t>& sleepers(uint32_t who) {
    return who == kCaller ? sleeping_callers_ : sleeping_engines_;
  }

  alignas(64) std::atomic<uint32_t> rings_{0};
  std::atomic<uint32_t> sleeping_callers_{0};
  std::atomic<uint32_t> sleeping_engines_{0};
};

}  // namespace freescale
