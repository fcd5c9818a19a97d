#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "cpp/device/pinned_words.h"
#include "cpp/transport/shm/shared_memory.h"
#include "tests/gpu/finding.h"

namespace freescale::probe {

// Words that the processes of a probe share: made before they fork, registered by each for itself.
class SharedWords {
 public:
  explicit SharedWords(size_t count)
      : count_(count), memory_(require(SharedMemory::create("probe", count * sizeof(uint32_t)))) {}

  cuda::PinnedWords register_words(const cuda::PrimaryContext& context) const {
    auto* const words = reinterpret_cast<std::atomic<uint32_t>*>(memory_.data());
    return require(cuda::PinnedWords::register_memory(context, std::span(words, count_)));
  }

 private:
  const size_t count_;
  const SharedMemory memory_;
};

}  // namespace freescale::probe
