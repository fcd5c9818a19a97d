#include "cpp/base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace freescale {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, uint32_t mask) {
  timespec until{};
  timespec* limit = nullptr;
  if (timeout_ns >= 0) {
    // FUTEX_WAIT_BITSET takes an absolute time on CLOCK_MONOTONIC.
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t nanoseconds = until.tv_nsec + timeout_ns % 1'000'000'000;
    until.tv_sec += timeout_ns / 1'000'000'000 + nanoseconds / 1'000'000'000;
    until.tv_nsec = nanoseconds % 1'000'000'000;
    limit = &until;
  }
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, limit, nullptr, mask);
}

void futex_wake_all(std::atomic<uint32_t>& word, uint32_t mask) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET, INT_MAX, nullptr, nullptr, mask);
}

}  // namespace freescale
