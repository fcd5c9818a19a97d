#include "cpp/device/pinned_words.h"

namespace freescale::cuda {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

Result<PinnedWords> PinnedWords::register_memory(const PrimaryContext& context,
                                                 std::span<std::atomic<uint32_t>> words) {
  const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(words.data()), words.size_bytes());
  Result<PinnedMemory> memory = PinnedMemory::register_memory(context, bytes);
  if (!memory.ok()) return memory.status();
  return PinnedWords(std::move(memory.value()), words);
}

}  // namespace freescale::cuda
