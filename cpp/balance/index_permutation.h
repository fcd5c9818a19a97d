#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace freescale {

// A shuffled order of 0 … size - 1 that takes no memory: any piece of it is computed when needed,
// the same on every machine. A Feistel network of alternating halves over the smallest power of two
// that holds `size` (Luby and Rackoff 1988); what falls outside is put through again (cycle
// walking, Black and Rogaway 2002), less than twice on average.
//
// Saved training states count steps of this order: the same arguments must give it for ever.
class IndexPermutation {
 public:
  // `size` is 1 … 2^62.
  IndexPermutation(uint64_t size, uint64_t seed, uint64_t epoch);

  // The element at `position`, which is less than the size.
  uint64_t at(uint64_t position) const;

  // The elements at `first`, `first + 1` and so on.
  void fill(uint64_t first, std::span<int64_t> elements) const;

 private:
  // Four are enough for a strong pseudo-random permutation of large halves; halves of a few bits,
  // as small data sets have, need more.
  static constexpr int kRounds = 8;

  uint64_t permute(uint64_t value) const;

  uint64_t size_;
  int low_bits_;
  uint64_t low_mask_;
  uint64_t high_mask_;
  std::array<uint64_t, kRounds> keys_;
};

}  // namespace freescale
