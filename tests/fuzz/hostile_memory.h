#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "tests/fuzz/input.h"

namespace freescale::fuzz {

// Zeroed memory of exactly `bytes` bytes, so that AddressSanitizer sees the first access beyond
// them. The hostile process writes to it whatever it likes.
class HostileMemory {
 public:
  explicit HostileMemory(size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {
    std::memset(data_.get(), 0, bytes);
  }

  std::byte* data() { return data_.get(); }

  // Anything at any place of the first `bytes` bytes.
  void poke(Input& input, size_t bytes) {
    const size_t place = input.below(bytes / sizeof(uint32_t)) * sizeof(uint32_t);
    const uint64_t value = input.number();
    std::memcpy(data() + place, &value, std::min(sizeof(value), bytes_ - place));
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };

  size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

// Reads all of `data`, as a sink does.
inline void read_all(std::span<const std::byte> data) {
  const std::vector<std::byte> copy(data.begin(), data.end());
  asm volatile("" : : "r"(copy.data()) : "memory");  // or the compiler sees that nobody needs it
}

}  // namespace freescale::fuzz
