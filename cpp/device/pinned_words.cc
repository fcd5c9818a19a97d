#include "cpp/device/pinned_words.h"

#include <utility>

namespace freescale::cuda {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) &&
              std::atomic<uint32_t>::is_always_lock_free);

Result<PinnedWords> PinnedWords::register_memory(const PrimaryContext& context,
                                                 std::span<std::atomic<uint32_t>> words) {
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  const Driver& driver = context.driver();
  if (Status status = driver.mem_host_register(words.data(), words.size_bytes(),
                                               kHostPortable | kHostDeviceMap);
      !status.ok()) {
    return status;
  }
  DevicePtr device = 0;
  if (Status status = driver.mem_host_get_device_pointer(&device, words.data(), 0); !status.ok()) {
    driver.mem_host_unregister.code(words.data());
    return status;
  }
  return PinnedWords(context, words, device);
}

PinnedWords::PinnedWords(PinnedWords&& other) noexcept
    : context_(std::exchange(other.context_, nullptr)),
      words_(other.words_),
      device_(other.device_) {}

PinnedWords::~PinnedWords() {
  if (context_ == nullptr) return;
  const CurrentContext current(*context_);
  // Fails only with a context that is lost, and then nothing is registered any more.
  context_->driver().mem_host_unregister.code(words_.data());
}

}  // namespace freescale::cuda
