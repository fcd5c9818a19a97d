#pragma once

#include <optional>

#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"
#include "cpp/transport/cuda_ipc/allocation_notice.h"

namespace freescale::cuda {

// An allocation of another process, as the context's device sees it while this object lives. The
// device's work on it must be over before. Calls the driver, and needs no current context.
class OpenedAllocation {
 public:
  // Nothing if the device has no access to that of the allocation, or the process to the fabric
  // that a notice of kFabric needs. `fd`, for a notice that came with a descriptor, stays the
  // caller's and may be closed afterwards.
  static Result<std::optional<OpenedAllocation>> open(const PrimaryContext& context,
                                                      const AllocationNotice& notice, int fd);
  OpenedAllocation(OpenedAllocation&& other) noexcept;
  OpenedAllocation& operator=(OpenedAllocation&&) = delete;
  ~OpenedAllocation();

  DevicePtr base() const { return base_; }

 private:
  OpenedAllocation(const PrimaryContext& context, const AllocationNotice& notice)
      : context_(&context), kind_(notice.kind), bytes_(notice.bytes) {}
  // False if there is no access.
  Result<bool> open_as(const AllocationNotice& notice, int fd);
  Result<bool> open_legacy(const IpcMemoryHandle& handle);
  Result<bool> open_descriptor(int fd);
  Result<bool> open_fabric(FabricHandle handle);
  Result<bool> map(AllocationHandle handle);
  Result<bool> allow_access();

  const PrimaryContext* context_;  // null when moved from
  AllocationNotice::Kind kind_;
  size_t bytes_;
  DevicePtr base_ = 0;   // 0: nothing to close
  bool mapped_ = false;  // of is_mapped() kinds: otherwise the addresses are reserved only
};

}  // namespace freescale::cuda
