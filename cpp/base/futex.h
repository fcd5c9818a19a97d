#pragma once

#include <atomic>
#include <cstdint>

namespace freescale {

// Thin names for futex(2). The words may lie in memory shared between processes.

inline constexpr uint32_t kFutexAnyBit = 0xffffffffu;

// Sleeps while `word` equals `expected`, until a wake whose mask shares a bit with `mask`, or until
// `timeout_ns` passed (negative: no limit). May return early for no reason.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns,
                uint32_t mask = kFutexAnyBit);

// Wakes every sleeper whose mask shares a bit with `mask`.
void futex_wake_all(std::atomic<uint32_t>& word, uint32_t mask = kFutexAnyBit);

}  // namespace freescale
