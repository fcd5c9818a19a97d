#pragma once

#include "cpp/device/cuda_types.h"

// The calls of the CUDA driver API that this project makes, once, for the loader, the stand-in
// driver of the tests, and the comparison with CUDA's headers:
//
//   X(member of Driver, name in the driver, CUDA version whose ABI is meant, arguments)
//
// A call that changed has several ABIs behind one name, and a driver gives the newest that is not
// above the version asked for. So each asks for the version in which the signature written here
// came up, never for "the newest". All are in every driver since 12.0.

#define FREESCALE_CUDA_DEVICE_CALLS(X)                                                             \
  X(init, cuInit, 2000, (unsigned flags))                                                          \
  X(driver_get_version, cuDriverGetVersion, 2020, (int* version))                                  \
  X(device_get_count, cuDeviceGetCount, 2000, (int* count))                                        \
  X(device_get, cuDeviceGet, 2000, (Device * device, int ordinal))                                 \
  X(device_get_name, cuDeviceGetName, 2000, (char* name, int bytes, Device device))                \
  X(device_get_uuid, cuDeviceGetUuid, 11040, (Uuid * uuid, Device device))                         \
  X(device_get_attribute, cuDeviceGetAttribute, 2000,                                              \
    (int* value, DeviceAttribute attribute, Device device))                                        \
  X(device_can_access_peer, cuDeviceCanAccessPeer, 4000, (int* can, Device device, Device peer))   \
  X(device_primary_ctx_retain, cuDevicePrimaryCtxRetain, 7000, (Context * context, Device device)) \
  X(device_primary_ctx_release, cuDevicePrimaryCtxRelease, 11000, (Device device))                 \
  X(ctx_get_current, cuCtxGetCurrent, 4000, (Context * context))                                   \
  X(ctx_set_current, cuCtxSetCurrent, 4000, (Context context))                                     \
  X(ctx_push_current, cuCtxPushCurrent, 4000, (Context context))                                   \
  X(ctx_pop_current, cuCtxPopCurrent, 4000, (Context * context))                                   \
  X(ctx_get_device, cuCtxGetDevice, 2000, (Device * device))                                       \
  X(ctx_get_stream_priority_range, cuCtxGetStreamPriorityRange, 5050, (int* least, int* greatest))

// Memory that cuMemAlloc gives, and what may be asked about any address.
#define FREESCALE_CUDA_MEMORY_CALLS(X)                                                          \
  X(mem_alloc, cuMemAlloc, 3020, (DevicePtr * address, size_t bytes))                           \
  X(mem_free, cuMemFree, 3020, (DevicePtr address))                                             \
  X(mem_get_address_range, cuMemGetAddressRange, 3020,                                          \
    (DevicePtr * base, size_t* bytes, DevicePtr address))                                       \
  X(pointer_get_attribute, cuPointerGetAttribute, 4000,                                         \
    (void* value, PointerAttribute attribute, DevicePtr address))                               \
  X(ipc_get_mem_handle, cuIpcGetMemHandle, 4010, (IpcMemoryHandle * handle, DevicePtr address)) \
  X(ipc_open_mem_handle, cuIpcOpenMemHandle, 11000,                                             \
    (DevicePtr * address, IpcMemoryHandle handle, unsigned flags))                              \
  X(ipc_close_mem_handle, cuIpcCloseMemHandle, 4010, (DevicePtr address))

// Memory in two halves, physical and mapped: what torch's expandable segments consist of.
#define FREESCALE_CUDA_MAPPING_CALLS(X)                                                    \
  X(mem_get_allocation_granularity, cuMemGetAllocationGranularity, 10020,                  \
    (size_t* bytes, const AllocationProperties* properties, Granularity option))           \
  X(mem_create, cuMemCreate, 10020,                                                        \
    (AllocationHandle * handle, size_t bytes, const AllocationProperties* properties,      \
     unsigned long long flags))                                                            \
  X(mem_release, cuMemRelease, 10020, (AllocationHandle handle))                           \
  X(mem_address_reserve, cuMemAddressReserve, 10020,                                       \
    (DevicePtr * address, size_t bytes, size_t alignment, DevicePtr hint,                  \
     unsigned long long flags))                                                            \
  X(mem_address_free, cuMemAddressFree, 10020, (DevicePtr address, size_t bytes))          \
  X(mem_map, cuMemMap, 10020,                                                              \
    (DevicePtr address, size_t bytes, size_t offset, AllocationHandle handle,              \
     unsigned long long flags))                                                            \
  X(mem_unmap, cuMemUnmap, 10020, (DevicePtr address, size_t bytes))                       \
  X(mem_set_access, cuMemSetAccess, 10020,                                                 \
    (DevicePtr address, size_t bytes, const AccessDescription* access, size_t count))      \
  X(mem_export_to_shareable_handle, cuMemExportToShareableHandle, 10020,                   \
    (void* shareable, AllocationHandle handle, HandleType type, unsigned long long flags)) \
  X(mem_import_from_shareable_handle, cuMemImportFromShareableHandle, 10020,               \
    (AllocationHandle * handle, void* shareable, HandleType type))                         \
  X(mem_retain_allocation_handle, cuMemRetainAllocationHandle, 11000,                      \
    (AllocationHandle * handle, void* address))

#define FREESCALE_CUDA_HOST_CALLS(X)                                                           \
  X(mem_host_alloc, cuMemHostAlloc, 2020, (void** address, size_t bytes, unsigned flags))      \
  X(mem_free_host, cuMemFreeHost, 2000, (void* address))                                       \
  X(mem_host_register, cuMemHostRegister, 6050, (void* address, size_t bytes, unsigned flags)) \
  X(mem_host_unregister, cuMemHostUnregister, 4000, (void* address))                           \
  X(mem_host_get_device_pointer, cuMemHostGetDevicePointer, 3020,                              \
    (DevicePtr * address, void* host, unsigned flags))

// The operations on memory are those of 11.7: what came before has to be switched on in the module
// of the kernel.
#define FREESCALE_CUDA_STREAM_CALLS(X)                                                        \
  X(stream_create_with_priority, cuStreamCreateWithPriority, 5050,                            \
    (Stream * stream, unsigned flags, int priority))                                          \
  X(stream_destroy, cuStreamDestroy, 4000, (Stream stream))                                   \
  X(stream_get_priority, cuStreamGetPriority, 5050, (Stream stream, int* priority))           \
  X(stream_query, cuStreamQuery, 2000, (Stream stream))                                       \
  X(stream_synchronize, cuStreamSynchronize, 2000, (Stream stream))                           \
  X(stream_is_capturing, cuStreamIsCapturing, 10000, (Stream stream, CaptureStatus * status)) \
  X(stream_wait_event, cuStreamWaitEvent, 3020, (Stream stream, Event event, unsigned flags)) \
  X(event_create, cuEventCreate, 2000, (Event * event, unsigned flags))                       \
  X(event_destroy, cuEventDestroy, 4000, (Event event))                                       \
  X(event_record, cuEventRecord, 2000, (Event event, Stream stream))                          \
  X(event_query, cuEventQuery, 2000, (Event event))                                           \
  X(event_synchronize, cuEventSynchronize, 2000, (Event event))                               \
  X(memcpy_async, cuMemcpyAsync, 4000,                                                        \
    (DevicePtr to, DevicePtr from, size_t bytes, Stream stream))                              \
  X(stream_wait_value32, cuStreamWaitValue32, 11070,                                          \
    (Stream stream, DevicePtr address, uint32_t value, unsigned flags))                       \
  X(stream_write_value32, cuStreamWriteValue32, 11070,                                        \
    (Stream stream, DevicePtr address, uint32_t value, unsigned flags))                       \
  X(stream_batch_mem_op, cuStreamBatchMemOp, 11070,                                           \
    (Stream stream, unsigned count, MemoryOperation* operations, unsigned flags))

#define FREESCALE_CUDA_CALLS(X)   \
  FREESCALE_CUDA_DEVICE_CALLS(X)  \
  FREESCALE_CUDA_MEMORY_CALLS(X)  \
  FREESCALE_CUDA_MAPPING_CALLS(X) \
  FREESCALE_CUDA_HOST_CALLS(X)    \
  FREESCALE_CUDA_STREAM_CALLS(X)

namespace freescale::cuda {

// cuMemcpyBatchAsync exists from 12.8 on, and lost an argument in 13.0. Driver hides that.
inline constexpr int kBatchCopyWithFailIndex = 12080;
inline constexpr int kBatchCopy = 13000;
using BatchCopyWithFailIndex = Code(DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                                    CopyAttributes* attributes, size_t* attribute_starts,
                                    size_t attribute_count, size_t* fail_index, Stream stream);
using BatchCopy = Code(DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                       CopyAttributes* attributes, size_t* attribute_starts, size_t attribute_count,
                       Stream stream);

// cuGetProcAddress of 12.0, which libcuda exports as cuGetProcAddress_v2.
using GetProcAddress = Code(const char* name, void** entry, int version, uint64_t flags,
                            ProcAddressStatus* status);
using GetErrorName = Code(Code code, const char** name);

}  // namespace freescale::cuda
