#include "cpp/balance/index_permutation.h"

#include <algorithm>
#include <bit>

namespace freescale {
namespace {

// 2^64 divided by the golden ratio, odd: the step of SplitMix64 (Steele, Lea and Flood 2014).
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;

// SplitMix64's output function (Stafford's thirteenth variant): every bit of the input changes half
// of the bits of the output.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

constexpr uint64_t mask(int bits) { return (uint64_t{1} << bits) - 1; }

}  // namespace

IndexPermutation::IndexPermutation(uint64_t size, uint64_t seed, uint64_t epoch) : size_(size) {
  const int bits = std::max(2, static_cast<int>(std::bit_width(size - 1)));
  low_bits_ = bits / 2;
  low_mask_ = mask(low_bits_);
  high_mask_ = mask(bits - low_bits_);
  uint64_t key = mix(mix(seed + kGolden) + epoch);
  for (uint64_t& round_key : keys_) round_key = mix(key += kGolden);
}

uint64_t IndexPermutation::at(uint64_t position) const {
  do {
    position = permute(position);
  } while (position >= size_);
  return position;
}

void IndexPermutation::fill(uint64_t first, std::span<int64_t> elements) const {
  for (int64_t& element : elements) element = static_cast<int64_t>(at(first++));
}

uint64_t IndexPermutation::permute(uint64_t value) const {
  uint64_t high = value >> low_bits_;
  uint64_t low = value & low_mask_;
  for (int round = 0; round < kRounds; round += 2) {
    high ^= mix(low + keys_[round]) & high_mask_;
    low ^= mix(high + keys_[round + 1]) & low_mask_;
  }
  return high << low_bits_ | low;
}

}  // namespace freescale
