#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "cpp/device/pinned_memory.h"
#include "cpp/transport/shm/shared_memory.h"

namespace freescale::cuda {

// Slots of pinned memory that two processes share: how messages go where the device of one cannot
// reach that of the other. Chunks are counted from 0 on, and take the slots in turn.
class StagingRing {
 public:
  // Two are on their way while one is filled and one is emptied.
  static constexpr uint32_t kSlots = 4;
  static constexpr uint64_t kSlotBytes = 1 << 20;
  static constexpr size_t kBytes = kSlots * kSlotBytes;

  static Result<std::unique_ptr<StagingRing>> create(const PrimaryContext& context);
  // The other end of one that a peer has created.
  static Result<std::unique_ptr<StagingRing>> open(const PrimaryContext& context, UniqueFd fd);

  int fd() const { return memory_.fd(); }
  DevicePtr slot(uint32_t chunk) const { return pinned_.device() + chunk % kSlots * kSlotBytes; }

 private:
  StagingRing(SharedMemory memory, PinnedMemory pinned)
      : memory_(std::move(memory)), pinned_(std::move(pinned)) {}
  static Result<std::unique_ptr<StagingRing>> map(const PrimaryContext& context,
                                                  SharedMemory memory);

  SharedMemory memory_;
  PinnedMemory pinned_;
};

}  // namespace freescale::cuda
