#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

namespace freescale {

// One number that differs when any of `values` does: for Signature::layout.
inline uint64_t layout_digest(std::span<const uint64_t> values) {
  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a over 64-bit words
  for (uint64_t value : values) {
    digest ^= value;
    digest *= 0x100000001b3;
    digest ^= digest >> 29;  // the multiplication alone carries nothing downwards
  }
  return digest;
}

inline uint64_t layout_digest(std::initializer_list<uint64_t> values) {
  return layout_digest(std::span<const uint64_t>(values.begin(), values.size()));
}

}  // namespace freescale
