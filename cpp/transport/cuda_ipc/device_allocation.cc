#include "cpp/transport/cuda_ipc/device_allocation.h"

#include <cstdio>
#include <string>

#include "cpp/transport/cuda_ipc/owned_handle.h"

namespace freescale::cuda {
namespace {

using Kind = AllocationNotice::Kind;

// An attribute of whatever width, which for booleans descriptions do not agree about: the machines
// with CUDA are little-endian.
Code read_attribute(const Driver& driver, PointerAttribute which, DevicePtr address,
                    uint64_t* value) {
  *value = 0;
  return driver.pointer_get_attribute.code(value, which, address);
}

Status refusal(DevicePtr address, const std::string& why) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(address));
  return Status::invalid_argument("the address " + std::string(text) + " " + why);
}

Status check_type(const Driver& driver, DevicePtr address) {
  uint64_t type = 0;
  const Code code = read_attribute(driver, PointerAttribute::kMemoryType, address, &type);
  // Pageable memory of the host is unknown to the driver.
  if (code == Code::kInvalidValue) return refusal(address, "is no device memory");
  if (code != Code::kSuccess) return driver.pointer_get_attribute.status(code);
  return type == static_cast<uint64_t>(MemoryType::kDevice)
             ? Status()
             : refusal(address, "is no device memory");
}

Status check_device(const PrimaryContext& context, DevicePtr address) {
  uint64_t ordinal = 0;
  if (Status status = context.driver().pointer_get_attribute(
          &ordinal, PointerAttribute::kDeviceOrdinal, address);
      !status.ok()) {
    return status;
  }
  if (static_cast<Device>(ordinal) == context.device()) return {};
  return refusal(address, "is memory of device " + std::to_string(ordinal) +
                              ", but this process communicates with device " +
                              std::to_string(context.device()));
}

// How memory that was mapped can be opened by others.
Result<Kind> kind_of_mapping(const Driver& driver, DevicePtr address) {
  AllocationHandle handle = 0;
  if (driver.mem_retain_allocation_handle.code(&handle, reinterpret_cast<void*>(address)) !=
      Code::kSuccess) {
    return refusal(address,
                   "is memory of a pool (cudaMallocAsync) or managed memory, which other processes "
                   "cannot open: allocate it with cudaMalloc, in torch with the allocator's "
                   "backend \"native\" (PYTORCH_CUDA_ALLOC_CONF=backend:native)");
  }
  const OwnedHandle owned(driver, handle);
  uint64_t types = 0;
  if (Status status =
          driver.pointer_get_attribute(&types, PointerAttribute::kAllowedHandleTypes, address);
      !status.ok()) {
    return status;
  }
  // The first needs no service beside the driver.
  if (allows(types, HandleType::kPosixFileDescriptor)) return Kind::kDescriptor;
  if (allows(types, HandleType::kFabric)) return Kind::kFabric;
  return refusal(address,
                 "is memory that was created with neither "
                 "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR nor CU_MEM_HANDLE_TYPE_FABRIC, so that "
                 "other processes cannot open it: set TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1, or "
                 "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False");
}

}  // namespace

Result<DeviceAllocation> find_allocation(const PrimaryContext& context, DevicePtr address) {
  const Driver& driver = context.driver();
  if (Status status = check_type(driver, address); !status.ok()) return status;
  DeviceAllocation found;
  // Not the attributes kRangeStart and kRangeSize: where memory is mapped those are the reservation
  // around it, and this is the one mapping that holds the address (NVIDIA/DALI#3064,
  // openucx/ucx#11461, ofiwg/libfabric#12473).
  size_t bytes = 0;
  const Code code = driver.mem_get_address_range.code(&found.base, &bytes, address);
  if (code != Code::kSuccess) {
    return refusal(address, "has no memory behind it (" +
                                driver.mem_get_address_range.status(code).message() + ")");
  }
  found.bytes = bytes;
  if (Status status = check_device(context, address); !status.ok()) return status;
  uint64_t legacy = 0;
  if (Status status =
          driver.pointer_get_attribute(&legacy, PointerAttribute::kIsLegacyIpcCapable, address);
      !status.ok()) {
    return status;
  }
  if (legacy == 0) {
    const Result<Kind> kind = kind_of_mapping(driver, found.base);
    if (!kind.ok()) return kind.status();
    found.kind = kind.value();
  }
  if (Status status =
          driver.pointer_get_attribute(&found.buffer_id, PointerAttribute::kBufferId, address);
      !status.ok()) {
    return status;
  }
  return found;
}

bool still_exists(const Driver& driver, const DeviceAllocation& allocation) {
  // Reserved addresses have attributes also where nothing is mapped.
  if (is_mapped(allocation.kind)) {
    uint64_t mapped = 0;
    const Code code = read_attribute(driver, PointerAttribute::kMapped, allocation.base, &mapped);
    if (code == Code::kSuccess && mapped == 0) return false;
  }
  uint64_t id = 0;
  const Code code = read_attribute(driver, PointerAttribute::kBufferId, allocation.base, &id);
  // Other errors are the context's, and say nothing about the memory.
  return code == Code::kSuccess ? id == allocation.buffer_id : code != Code::kInvalidValue;
}

}  // namespace freescale::cuda
