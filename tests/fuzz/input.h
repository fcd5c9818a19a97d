#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <source_location>
#include <span>
#include <type_traits>
#include <vector>

namespace freescale::fuzz {

// What must hold whatever another process writes. abort(), so that the input is kept.
inline void require(bool holds, std::source_location where = std::source_location::current()) {
  if (holds) return;
  std::fprintf(stderr, "%s:%u: does not hold (errno %d)\n", where.file_name(), where.line(), errno);
  std::abort();
}

// Reads what a hostile process does off the bytes that the fuzzer made up. Zeros follow the last.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(std::as_bytes(std::span(data, size))) {}

  bool empty() const { return bytes_.empty(); }

  template <typename T>
  T take() {
    static_assert(std::is_integral_v<T>);
    T value = 0;
    const size_t length = std::min(sizeof(T), bytes_.size());
    if (length > 0) std::memcpy(&value, bytes_.data(), length);
    bytes_ = bytes_.subspan(length);
    return value;
  }

  size_t below(size_t limit) { return (limit <= 256 ? take<uint8_t>() : take<uint32_t>()) % limit; }

  // A number of any size from few bytes: small, close below zero, or eight bytes as they are.
  uint64_t number() {
    const auto first = take<uint8_t>();
    if (first < 192) return first;
    return first < 240 ? ~uint64_t{0} - (first - 192) : take<uint64_t>();
  }

  std::vector<std::byte> rest() {
    std::vector<std::byte> all(bytes_.begin(), bytes_.end());
    bytes_ = {};
    return all;
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace freescale::fuzz
