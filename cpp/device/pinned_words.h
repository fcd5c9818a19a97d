#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "cpp/base/status.h"
#include "cpp/device/pinned_memory.h"

namespace freescale::cuda {

// A 32-bit word of pinned host memory that streams wait for and write, and the host too: the only
// kind of flag that a GPU sees here. In a peer's device memory a stream cannot write one since
// CUDA 13.1 (NVIDIA/nccl#2052), and no host could end a wait for it.
struct PinnedWord {
  std::atomic<uint32_t>* host = nullptr;
  DevicePtr device = 0;
};

// Words count up and may wrap, so "reached" is cyclic, on the host as in a stream's wait.
inline bool has_reached(uint32_t word, uint32_t value) {
  return static_cast<int32_t>(word - value) >= 0;
}

// A word and the value that it is waited for, or set to.
struct WordValue {
  PinnedWord word;
  uint32_t value = 0;

  bool reached() const { return has_reached(word.host->load(std::memory_order_acquire), value); }
};

// Pinned memory as words.
class PinnedWords {
 public:
  // As PinnedMemory::register_memory().
  static Result<PinnedWords> register_memory(const PrimaryContext& context,
                                             std::span<std::atomic<uint32_t>> words);

  size_t size() const { return words_.size(); }
  PinnedWord operator[](size_t index) const {
    return {&words_[index], memory_.device() + index * sizeof(uint32_t)};
  }

 private:
  PinnedWords(PinnedMemory memory, std::span<std::atomic<uint32_t>> words)
      : memory_(std::move(memory)), words_(words) {}

  PinnedMemory memory_;
  std::span<std::atomic<uint32_t>> words_;
};

}  // namespace freescale::cuda
