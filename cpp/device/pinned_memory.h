#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"

namespace freescale::cuda {

// Host memory, often shared between processes, that this process's streams may use. Each process
// registers its own mapping.
class PinnedMemory {
 public:
  // `memory` is not owned and must outlive this object, and the work of all streams that use it; so
  // must `context`. All contexts of the process may use it, whichever is current.
  static Result<PinnedMemory> register_memory(const PrimaryContext& context,
                                              std::span<std::byte> memory);
  PinnedMemory(PinnedMemory&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)),
        memory_(other.memory_),
        device_(other.device_) {}
  PinnedMemory& operator=(PinnedMemory&&) = delete;
  ~PinnedMemory();

  std::span<std::byte> host() const { return memory_; }
  // Where the streams find it.
  DevicePtr device() const { return device_; }

 private:
  PinnedMemory(const PrimaryContext& context, std::span<std::byte> memory, DevicePtr device)
      : context_(&context), memory_(memory), device_(device) {}

  const PrimaryContext* context_;  // null when moved from
  std::span<std::byte> memory_;
  DevicePtr device_;
};

}  // namespace freescale::cuda
