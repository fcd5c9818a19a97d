#include "cpp/transport/cuda_ipc/host_buffers.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace freescale::cuda {
namespace {

// So that messages of about one size share blocks.
constexpr size_t kLeastBytes = 64 << 10;

}  // namespace

HostBuffers::Block& HostBuffers::Block::operator=(Block&& other) noexcept {
  give_back();
  owner_ = std::move(other.owner_);
  memory_ = std::move(other.memory_);
  pages_ = std::move(other.pages_);
  return *this;
}

void HostBuffers::Block::give_back() {
  const std::shared_ptr<HostBuffers> owner = std::move(owner_);
  if (owner == nullptr) return;
  const std::lock_guard lock(owner->mutex_);
  const size_t bytes = memory_->host().size();
  owner->free_[bytes].push_back(std::move(*this));
}

Result<HostBuffers::Block> HostBuffers::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kLeastBytes));
  {
    const std::lock_guard lock(mutex_);
    if (std::vector<Block>& free = free_[size]; !free.empty()) {
      Block block = std::move(free.back());
      free.pop_back();
      block.owner_ = shared_from_this();
      return block;
    }
  }
  Result<SharedMemory> pages = SharedMemory::create("freescale-stage", size);
  if (!pages.ok()) return pages.status();
  Block block;
  block.pages_ = std::make_unique<SharedMemory>(std::move(pages.value()));
  block.pages_->close_fd();
  Result<PinnedMemory> memory =
      PinnedMemory::register_memory(*context_, {block.pages_->data(), size});
  if (!memory.ok()) return memory.status();
  block.memory_ = std::make_unique<PinnedMemory>(std::move(memory.value()));
  block.owner_ = shared_from_this();
  return block;
}

}  // namespace freescale::cuda
