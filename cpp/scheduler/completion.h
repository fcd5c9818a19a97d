#pragma once

#include <atomic>

namespace freescale {

// A one-shot event that threads inside Engine::wait() wait for. set() may come from any thread; the
// object must outlive it, so share its ownership with the code that sets it. Sleepers are woken by
// the engine, once the on_done that called set() has returned.
class Completion {
 public:
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  void set() { set_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> set_{false};
};

}  // namespace freescale
