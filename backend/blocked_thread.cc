#include "backend/blocked_thread.h"

#include <unistd.h>

#include <atomic>

namespace freescale {
namespace {

std::atomic<int> blocked_threads{0};
thread_local int depth = 0;

}  // namespace

uint64_t thread_number() {
  thread_local const auto number = static_cast<uint64_t>(gettid());
  return number;
}

BlockedThread::BlockedThread() : outermost_(depth++ == 0) {
  if (outermost_) blocked_threads.fetch_add(1, std::memory_order_release);
}

BlockedThread::~BlockedThread() {
  --depth;
  if (outermost_) blocked_threads.fetch_sub(1, std::memory_order_release);
}

bool BlockedThread::is_here() { return depth > 0; }

int BlockedThread::count() { return blocked_threads.load(std::memory_order_acquire); }

}  // namespace freescale
