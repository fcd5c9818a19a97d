#include <fcntl.h>

#include <cstring>

#include "tests/fakes/cuda_driver/calls.h"
#include "tests/fakes/cuda_driver/entry.h"
#include "tests/fakes/cuda_driver/exported.h"
#include "tests/fakes/cuda_driver/faults.h"
#include "tests/fakes/cuda_driver/memory.h"
#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda::calls {
namespace {

// What devices of today ask for.
constexpr size_t kGranularity = 2 << 20;

// What an IpcMemoryHandle says is an Exported with this mark.
constexpr uint64_t kMemoryMagic = 0x4652455343414c45;
static_assert(sizeof(Exported) <= sizeof(IpcMemoryHandle));

// The same of a FabricHandle.
constexpr uint64_t kFabricMagic = 0x4652454546414252;
static_assert(sizeof(Exported) <= sizeof(FabricHandle));

template <typename Handle>
void write_exported(const Physical& physical, uint64_t magic, Handle* handle) {
  const Exported exported = Exported::describe(physical.fd.get(), magic);
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &exported, sizeof(exported));
}

// The memory that an exporter's handle names.
template <typename Handle>
Code open_exported(const Handle& handle, uint64_t magic, std::shared_ptr<Physical>* physical) {
  Exported exported;
  std::memcpy(&exported, &handle, sizeof(exported));
  UniqueFd fd;
  if (const Code code = exported.open(magic, &fd); code != Code::kSuccess) return code;
  *physical = Physical::adopt(std::move(fd));
  return *physical != nullptr ? Code::kSuccess : Code::kInvalidHandle;
}

template <typename T>
Code answer(void* value, T content) {
  std::memcpy(value, &content, sizeof(content));
  return Code::kSuccess;
}

// What the attributes call the range of an address: where memory is mapped, not the mapping.
Reservation range_of(const Region& region) {
  const auto reserved = AddressSpace::get().find_reservation(region.start);
  return reserved.value_or(Reservation{region.start, region.bytes, 0});
}

// Addresses that were reserved are known also where no memory is mapped. Which buffer id they have
// there is not said anywhere, so it is the one that confuses most.
Code attribute_of(const Reservation& reserved, void* value, PointerAttribute attribute) {
  switch (attribute) {
    case PointerAttribute::kMemoryType:
      return answer(value, MemoryType::kDevice);
    case PointerAttribute::kBufferId:
      return answer(value, reserved.last_buffer_id);
    case PointerAttribute::kRangeStart:
      return answer(value, reserved.start);
    case PointerAttribute::kRangeSize:
      return answer(value, reserved.bytes);
    case PointerAttribute::kMapped:
    case PointerAttribute::kIsLegacyIpcCapable:
      return answer(value, false);
    default:
      return Code::kInvalidValue;
  }
}

Code attribute_of(const Region& region, void* value, PointerAttribute attribute, Context context) {
  const bool is_host = region.kind == Region::Kind::kHost;
  switch (attribute) {
    case PointerAttribute::kContext:
      return answer(value, context);
    case PointerAttribute::kMemoryType:
      return answer(value, is_host ? MemoryType::kHost : MemoryType::kDevice);
    case PointerAttribute::kBufferId:
      return answer(value, region.buffer_id);
    case PointerAttribute::kDeviceOrdinal:
      return is_host ? Code::kInvalidValue : answer(value, region.physical->device);
    case PointerAttribute::kIsLegacyIpcCapable:
      return answer(value, region.kind == Region::Kind::kAllocated);
    case PointerAttribute::kRangeStart:
      return answer(value, range_of(region).start);
    case PointerAttribute::kRangeSize:
      return answer(value, range_of(region).bytes);
    case PointerAttribute::kMapped:
      return answer(value, true);
    case PointerAttribute::kAllowedHandleTypes:
      return answer(value, region.kind == Region::Kind::kMapped ? region.physical->handle_types
                                                                : uint64_t{0});
  }
  return Code::kInvalidValue;
}

}  // namespace

Code mem_alloc(DevicePtr* address, size_t bytes) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().allocate(address, bytes, entry.device().ordinal(),
                                      Region::Kind::kAllocated);
}

Code mem_free(DevicePtr address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().free(address);
}

Code mem_get_address_range(DevicePtr* base, size_t* bytes, DevicePtr address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto region = AddressSpace::get().find(address);
  if (region == nullptr) return Code::kNotFound;
  if (base != nullptr) *base = region->start;
  if (bytes != nullptr) *bytes = region->bytes;
  return Code::kSuccess;
}

Code pointer_get_attribute(void* value, PointerAttribute attribute, DevicePtr address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto region = AddressSpace::get().find(address);
  if (region == nullptr) {
    const auto reserved = AddressSpace::get().find_reservation(address);
    return reserved ? attribute_of(*reserved, value, attribute) : Code::kInvalidValue;
  }
  return attribute_of(*region, value, attribute, reinterpret_cast<Context>(&entry.device()));
}

Code ipc_get_mem_handle(IpcMemoryHandle* handle, DevicePtr address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto region = AddressSpace::get().find(address);
  // Neither what is mapped in halves, nor what another process exported.
  if (region == nullptr || region->kind != Region::Kind::kAllocated) return Code::kInvalidValue;
  write_exported(*region->physical, kMemoryMagic, handle);
  return Code::kSuccess;
}

Code ipc_open_mem_handle(DevicePtr* address, IpcMemoryHandle handle, unsigned flags) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  if (const auto code = occurs(Fault::kIpcDenied)) return static_cast<Code>(*code);
  if (flags != kIpcLazyEnablePeerAccess) return Code::kInvalidValue;
  std::shared_ptr<Physical> physical;
  if (const Code code = open_exported(handle, kMemoryMagic, &physical); code != Code::kSuccess) {
    return code;
  }
  const int here = entry.device().ordinal();
  if (physical->device != here && !Settings::get().can_access_peer(here, physical->device)) {
    return Code::kPeerAccessUnsupported;
  }
  return AddressSpace::get().import(address, std::move(physical));
}

Code ipc_close_mem_handle(DevicePtr address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().close(address);
}

Code mem_get_allocation_granularity(size_t* bytes, const AllocationProperties*, Granularity) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  *bytes = kGranularity;
  return Code::kSuccess;
}

Code mem_create(AllocationHandle* handle, size_t bytes, const AllocationProperties* properties,
                unsigned long long flags) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  const bool sensible = flags == 0 && bytes > 0 && bytes % kGranularity == 0 &&
                        properties->type == AllocationType::kPinned &&
                        properties->location.type == LocationType::kDevice;
  if (!sensible) return Code::kInvalidValue;
  if (DeviceState::get(properties->location.id) == nullptr) return Code::kInvalidDevice;
  const auto types = static_cast<uint64_t>(properties->requested_handle_types);
  if (allows(types, HandleType::kFabric) && Settings::get().fabric == Fabric::kNo) {
    return Code::kNotSupported;
  }
  std::shared_ptr<Physical> physical = Physical::create(bytes, properties->location.id);
  if (physical == nullptr) return Code::kOutOfMemory;
  physical->handle_types = types;
  *handle = AllocationHandles::get().own(std::move(physical));
  return Code::kSuccess;
}

Code mem_release(AllocationHandle handle) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  return AllocationHandles::get().release(handle);
}

Code mem_address_reserve(DevicePtr* address, size_t bytes, size_t, DevicePtr,
                         unsigned long long flags) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  if (flags != 0) return Code::kInvalidValue;
  return AddressSpace::get().reserve(address, bytes);
}

Code mem_address_free(DevicePtr address, size_t bytes) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  return AddressSpace::get().unreserve(address, bytes);
}

Code mem_map(DevicePtr address, size_t bytes, size_t offset, AllocationHandle handle,
             unsigned long long flags) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  std::shared_ptr<Physical> physical = AllocationHandles::get().find(handle);
  // An offset is an argument, but none other than 0 is allowed.
  if (physical == nullptr || flags != 0 || offset != 0) return Code::kInvalidValue;
  return AddressSpace::get().map(address, bytes, std::move(physical));
}

Code mem_unmap(DevicePtr address, size_t bytes) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  return AddressSpace::get().unmap(address, bytes);
}

Code mem_set_access(DevicePtr address, size_t bytes, const AccessDescription* access,
                    size_t count) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  for (size_t i = 0; i < count; ++i) {
    const auto region = AddressSpace::get().find(address);
    if (region == nullptr || region->physical == nullptr) return Code::kInvalidValue;
    const int device = access[i].location.id;
    const int owner = region->physical->device;
    if (DeviceState::get(device) == nullptr ||
        (device != owner && !Settings::get().can_access_peer(device, owner))) {
      return Code::kInvalidDevice;
    }
    const Code code = AddressSpace::get().set_access(address, bytes, device,
                                                     access[i].flags != AccessFlags::kNone);
    if (code != Code::kSuccess) return code;
  }
  return Code::kSuccess;
}

Code mem_export_to_shareable_handle(void* shareable, AllocationHandle handle, HandleType type,
                                    unsigned long long flags) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  const std::shared_ptr<Physical> physical = AllocationHandles::get().find(handle);
  // One type at a time, and one that the memory was made for.
  const bool one = type == HandleType::kPosixFileDescriptor || type == HandleType::kFabric;
  if (physical == nullptr || flags != 0 || !one || !allows(physical->handle_types, type)) {
    return Code::kInvalidValue;
  }
  if (type == HandleType::kFabric) {
    if (Settings::get().fabric != Fabric::kYes) return Code::kInvalidValue;
    write_exported(*physical, kFabricMagic, static_cast<FabricHandle*>(shareable));
    return Code::kSuccess;
  }
  const int fd = fcntl(physical->fd.get(), F_DUPFD_CLOEXEC, 0);
  return fd >= 0 ? answer(shareable, fd) : Code::kOperatingSystem;
}

namespace {

Code import_fabric(const FabricHandle* handle, std::shared_ptr<Physical>* physical) {
  if (const auto code = occurs(Fault::kFabricDenied)) return static_cast<Code>(*code);
  if (Settings::get().fabric != Fabric::kYes) return Code::kNotSupported;
  return open_exported(*handle, kFabricMagic, physical);
}

Code import_descriptor(void* shareable, HandleType type, std::shared_ptr<Physical>* physical) {
  if (const auto code = occurs(Fault::kIpcDenied)) return static_cast<Code>(*code);
  if (type != HandleType::kPosixFileDescriptor) return Code::kNotSupported;
  // The descriptor itself, in the place of a pointer; it stays the caller's.
  const int theirs = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  *physical = Physical::adopt(UniqueFd(fcntl(theirs, F_DUPFD_CLOEXEC, 0)));
  return *physical != nullptr ? Code::kSuccess : Code::kInvalidValue;
}

}  // namespace

Code mem_import_from_shareable_handle(AllocationHandle* handle, void* shareable, HandleType type) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  std::shared_ptr<Physical> physical;
  const Code code = type == HandleType::kFabric
                        ? import_fabric(static_cast<const FabricHandle*>(shareable), &physical)
                        : import_descriptor(shareable, type, &physical);
  if (code != Code::kSuccess) return code;
  physical->handle_types = static_cast<uint64_t>(type);
  *handle = AllocationHandles::get().own(std::move(physical));
  return Code::kSuccess;
}

Code mem_retain_allocation_handle(AllocationHandle* handle, void* address) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  const auto region = AddressSpace::get().find(reinterpret_cast<DevicePtr>(address));
  if (region == nullptr || region->kind != Region::Kind::kMapped) return Code::kInvalidValue;
  *handle = AllocationHandles::get().own(region->physical);
  return Code::kSuccess;
}

Code mem_host_alloc(void** address, size_t bytes, unsigned) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().allocate_host(address, bytes);
}

Code mem_free_host(void* address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().free_host(address);
}

Code mem_host_register(void* address, size_t bytes, unsigned) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().register_host(address, bytes);
}

Code mem_host_unregister(void* address) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().unregister_host(address);
}

Code mem_host_get_device_pointer(DevicePtr* address, void* host, unsigned flags) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return flags == 0 ? AddressSpace::get().host_device_pointer(address, host) : Code::kInvalidValue;
}

}  // namespace fake_cuda::calls
