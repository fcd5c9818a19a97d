#pragma once

#include <cstdint>

namespace freescale {

// The calling thread, as the system and Python's threading.get_native_id() number it.
uint64_t thread_number();

// Made by a thread that goes into wait(), for as long as it is there. Completions that it runs
// meanwhile may wait in turn: that is no further time of the thread.
class BlockedThread {
 public:
  BlockedThread();
  ~BlockedThread();
  BlockedThread(const BlockedThread&) = delete;
  BlockedThread& operator=(const BlockedThread&) = delete;

  bool is_outermost() const { return outermost_; }
  // Whether the calling thread is in wait().
  static bool is_here();
  // How many threads of this process are in wait() now.
  static int count();

 private:
  const bool outermost_;
};

}  // namespace freescale
