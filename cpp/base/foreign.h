#pragma once

#include <atomic>
#include <cstring>
#include <type_traits>

namespace freescale {

// A copy of what lies in memory that another process may write at any time. What is checked in the
// copy stays so: the fence keeps the compiler from reading the original again afterwards.
template <typename T>
T copy_of_foreign(const void* original) {
  static_assert(std::is_trivially_copyable_v<T>);
  T copy;
  std::memcpy(&copy, original, sizeof(T));
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

}  // namespace freescale
