#pragma once

#include <cstdint>
#include <type_traits>

#include "cpp/device/cuda_types.h"

namespace freescale::cuda {

// How a peer opens an allocation of this process's device memory. Travels as it is over a Unix
// socket, one of kDescriptor together with a descriptor.
struct AllocationNotice {
  enum class Kind : uint32_t {
    kLegacy = 1,      // of cuMemAlloc, opened by `legacy`
    kDescriptor = 2,  // of cuMemCreate, opened by the descriptor
    kFabric = 3,      // of cuMemCreate, opened by `fabric`
  };
  uint64_t id = 0;  // the owner's name for it, never given twice
  Kind kind = Kind::kLegacy;
  uint64_t bytes = 0;
  IpcMemoryHandle legacy = {};
  FabricHandle fabric = {};
};

// Opened by mapping it, as its owner has.
inline bool is_mapped(AllocationNotice::Kind kind) {
  return kind != AllocationNotice::Kind::kLegacy;
}

// A part of an exported range: `bytes` from `offset` on in an allocation.
struct ExportedPiece {
  uint64_t allocation = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

static_assert(std::is_trivially_copyable_v<AllocationNotice> &&
              std::is_trivially_copyable_v<ExportedPiece>);

}  // namespace freescale::cuda
