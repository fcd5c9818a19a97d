#include "cpp/transport/cuda_ipc/staging_ring.h"

#include <span>

namespace freescale::cuda {

Result<std::unique_ptr<StagingRing>> StagingRing::create(const PrimaryContext& context) {
  Result<SharedMemory> memory = SharedMemory::create("freescale-staging", kBytes);
  if (!memory.ok()) return memory.status();
  return map(context, std::move(memory.value()));
}

Result<std::unique_ptr<StagingRing>> StagingRing::open(const PrimaryContext& context, UniqueFd fd) {
  Result<SharedMemory> memory = SharedMemory::open(std::move(fd), kBytes);
  if (!memory.ok()) return memory.status();
  memory.value().close_fd();
  return map(context, std::move(memory.value()));
}

Result<std::unique_ptr<StagingRing>> StagingRing::map(const PrimaryContext& context,
                                                      SharedMemory memory) {
  Result<PinnedMemory> pinned =
      PinnedMemory::register_memory(context, {memory.data(), memory.bytes()});
  if (!pinned.ok()) return pinned.status();
  return std::unique_ptr<StagingRing>(
      new StagingRing(std::move(memory), std::move(pinned.value())));
}

}  // namespace freescale::cuda
