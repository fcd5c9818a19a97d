#pragma once

#include <cstdint>

#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"
#include "cpp/transport/cuda_ipc/allocation_notice.h"

namespace freescale::cuda {

// Device memory that is opened by other processes as a whole: what cuMemAlloc gave, or one mapping
// of physical memory. Known by base and buffer id, since addresses are given again and ids are not.
struct DeviceAllocation {
  AllocationNotice::Kind kind = AllocationNotice::Kind::kLegacy;
  DevicePtr base = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;

  bool contains(DevicePtr address) const { return address - base < bytes; }
};

// These need the context to be current.

// The allocation of the context's device that holds an address. An error says why other processes
// cannot open it, and what to change.
Result<DeviceAllocation> find_allocation(const PrimaryContext& context, DevicePtr address);

// False once its memory was given back, whether or not its addresses are in use again.
bool still_exists(const Driver& driver, const DeviceAllocation& allocation);

}  // namespace freescale::cuda
