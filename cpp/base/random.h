#pragma once

#include <cstdint>
#include <span>

namespace freescale {

// Fills `bytes` from the kernel's random source: names and secrets, nothing that must be fast.
void fill_random(std::span<std::byte> bytes);
uint64_t random_u64();

}  // namespace freescale
