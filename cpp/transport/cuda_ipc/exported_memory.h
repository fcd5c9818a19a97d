#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"
#include "cpp/device/cuda_context.h"
#include "cpp/transport/cuda_ipc/allocation_notice.h"
#include "cpp/transport/cuda_ipc/device_allocation.h"

namespace freescale::cuda {

// The device memory of this process that peers were, or will be, told of: gives its allocations
// names, and notices when one is gone. One for each device. Keeps no memory alive.
//
// For any thread. All calls but take_gone() call the driver, and need no current context.
class ExportedMemory {
 public:
  // `context` must outlive this object.
  explicit ExportedMemory(const PrimaryContext& context) : context_(context) {}

  // The pieces that a range of device memory consists of, in order: one in memory of cuMemAlloc,
  // several where the range spans several mappings, as in torch's expandable segments. No bytes are
  // no pieces. The memory must stay allocated during the call. An error says why peers cannot open
  // the range, and what to change.
  Result<std::vector<ExportedPiece>> export_range(DevicePtr address, size_t bytes);

  // What a peer needs to open an allocation, and in `*fd` a descriptor of its own, or none. While a
  // descriptor exists, so does the physical memory.
  Result<AllocationNotice> notice(uint64_t id, UniqueFd* fd) const;

  // Looks at all allocations. export_range() does that whenever it meets a new one: it is then that
  // an allocator may have given others back, which must not stay mapped at peers.
  void sweep();

  // The allocations that were found to be gone since the last call: their memory was freed, whether
  // or not their addresses are in use again. Peers that had a notice are to be told, after it.
  std::vector<uint64_t> take_gone();

 private:
  struct Exported {
    DeviceAllocation allocation;
    IpcMemoryHandle legacy = {};
  };

  struct Named {
    uint64_t id = 0;
    DeviceAllocation allocation;
  };

  // With a current context.
  std::optional<Named> find_known(DevicePtr address) const;
  Result<Named> meet(DevicePtr address);
  Status export_mapping(DevicePtr mapping, AllocationNotice* notice, UniqueFd* fd) const;
  void sweep_in_context();

  uint64_t remember(const Exported& exported);

  const PrimaryContext& context_;

  mutable std::mutex mutex_;  // never held during a call of the driver
  uint64_t last_id_ = 0;
  std::map<uint64_t, Exported> known_;
  std::map<DevicePtr, uint64_t> by_base_;
  std::vector<uint64_t> gone_;
};

}  // namespace freescale::cuda
