#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cpp/device/cuda_context.h"
#include "cpp/device/pinned_memory.h"
#include "cpp/transport/shm/shared_memory.h"

namespace freescale::cuda {

// Pinned memory of the host, lent block by block: where messages to and from other hosts are on
// their way. To pin memory takes milliseconds, so what was lent once is kept for the next ones:
// as much as was in use at a time. Thread-safe.
class HostBuffers : public std::enable_shared_from_this<HostBuffers> {
 public:
  explicit HostBuffers(std::shared_ptr<const PrimaryContext> context)
      : context_(std::move(context)) {}

  // A block on loan, until the end of this object.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept = default;
    Block& operator=(Block&& other) noexcept;
    ~Block() { give_back(); }

    std::byte* host() const { return memory_->host().data(); }
    // Where the streams find it.
    DevicePtr device() const { return memory_->device(); }

   private:
    friend class HostBuffers;
    void give_back();

    std::shared_ptr<HostBuffers> owner_;
    std::unique_ptr<SharedMemory> pages_;
    std::unique_ptr<PinnedMemory> memory_;
  };
  // Of `bytes` or more. Calls the driver if none is free.
  Result<Block> take(size_t bytes);

 private:
  const std::shared_ptr<const PrimaryContext> context_;
  std::mutex mutex_;                           // guards the rest
  std::map<size_t, std::vector<Block>> free_;  // by size; without their owner
};

}  // namespace freescale::cuda
