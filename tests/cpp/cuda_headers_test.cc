// Compares the project's own declarations of the CUDA driver API with CUDA's headers, where CMake
// found some (tests/cpp/CMakeLists.txt). Nearly all of it happens while this file is compiled.

// Before CUDA's header, which renames calls by macros.
#include "cpp/device/cuda_driver.h"
#include "tests/cpp/check.h"
#include "tests/fakes/cuda_driver/runtime_calls.h"

#ifdef FREESCALE_CUDA_HEADERS

#include <cudaTypedefs.h>

#include <type_traits>

namespace freescale::cuda {
namespace {

// The same way of passing, as far as the ABI is concerned: a pointer, an integer or a struct of the
// same size.
template <typename Ours, typename Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
    std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_class_v<Ours> == (std::is_class_v<Theirs> || std::is_union_v<Theirs>);

// What a pointer points at must be alike as well, or void or unknown to us on one side.
template <typename Ours, typename Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_cv_t<std::remove_pointer_t<Ours>>;
    using TheirTarget = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
    if constexpr (std::is_void_v<OurTarget> || std::is_void_v<TheirTarget>) {
      return std::is_void_v<OurTarget> && std::is_void_v<TheirTarget>;
    } else if constexpr (requires {
                           sizeof(OurTarget);
                           sizeof(TheirTarget);
                         }) {
      return alike<OurTarget, TheirTarget>();
    } else {
      return true;  // the driver's own objects
    }
  } else {
    return kPassedAlike<Ours, Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename... Ours, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<Code(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<(alike<Ours, Theirs>() && ...)> {};

// Also fails where the header knows no ABI of that version under that name.
#define CHECK_CALL(member, name, version, arguments)                      \
  static_assert(SameCall<Code arguments, PFN_##name##_v##version>::value, \
                #name " has another signature in " #version);
FREESCALE_CUDA_CALLS(CHECK_CALL)
FAKE_CUDA_RUNTIME_CALLS(CHECK_CALL)
#undef CHECK_CALL

static_assert(SameCall<GetErrorName, PFN_cuGetErrorName_v6000>::value);
static_assert(SameCall<GetProcAddress, PFN_cuGetProcAddress_v12000>::value);
#if CUDA_VERSION >= 12080
static_assert(SameCall<BatchCopyWithFailIndex, PFN_cuMemcpyBatchAsync_v12080>::value);
static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(CopyAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(CopyAttributes, destination_hint) ==
              offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(CopyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));
static_assert(int(SourceAccessOrder::kStream) == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(kCopyPreferOverlapWithCompute == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
#endif
#if CUDA_VERSION >= 13000
static_assert(SameCall<BatchCopy, PFN_cuMemcpyBatchAsync_v13000>::value);
#endif

#define CHECK_VALUE(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))
CHECK_VALUE(Code::kSuccess, CUDA_SUCCESS);
CHECK_VALUE(Code::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
CHECK_VALUE(Code::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
CHECK_VALUE(Code::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
CHECK_VALUE(Code::kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
CHECK_VALUE(Code::kNoDevice, CUDA_ERROR_NO_DEVICE);
CHECK_VALUE(Code::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
CHECK_VALUE(Code::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
CHECK_VALUE(Code::kMapFailed, CUDA_ERROR_MAP_FAILED);
CHECK_VALUE(Code::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
CHECK_VALUE(Code::kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
CHECK_VALUE(Code::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
CHECK_VALUE(Code::kNotFound, CUDA_ERROR_NOT_FOUND);
CHECK_VALUE(Code::kNotReady, CUDA_ERROR_NOT_READY);
CHECK_VALUE(Code::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
CHECK_VALUE(Code::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
CHECK_VALUE(Code::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
CHECK_VALUE(Code::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
CHECK_VALUE(Code::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
CHECK_VALUE(Code::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
CHECK_VALUE(Code::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
CHECK_VALUE(Code::kUnknown, CUDA_ERROR_UNKNOWN);

CHECK_VALUE(DeviceAttribute::kAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
CHECK_VALUE(DeviceAttribute::kStreamPrioritiesSupported,
            CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
CHECK_VALUE(DeviceAttribute::kCanUseHostPointerForRegisteredMemory,
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
CHECK_VALUE(DeviceAttribute::kVirtualMemoryManagementSupported,
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
CHECK_VALUE(DeviceAttribute::kPosixFileDescriptorHandleSupported,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
CHECK_VALUE(DeviceAttribute::kFabricHandleSupported,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
CHECK_VALUE(kRdmaOfMappedMemory, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);

CHECK_VALUE(PointerAttribute::kContext, CU_POINTER_ATTRIBUTE_CONTEXT);
CHECK_VALUE(PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
CHECK_VALUE(PointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
CHECK_VALUE(PointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
CHECK_VALUE(PointerAttribute::kIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
CHECK_VALUE(PointerAttribute::kRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
CHECK_VALUE(PointerAttribute::kRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
CHECK_VALUE(PointerAttribute::kMapped, CU_POINTER_ATTRIBUTE_MAPPED);
CHECK_VALUE(PointerAttribute::kAllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
CHECK_VALUE(MemoryType::kHost, CU_MEMORYTYPE_HOST);
CHECK_VALUE(MemoryType::kDevice, CU_MEMORYTYPE_DEVICE);

CHECK_VALUE(HandleType::kNone, CU_MEM_HANDLE_TYPE_NONE);
CHECK_VALUE(HandleType::kPosixFileDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
CHECK_VALUE(HandleType::kFabric, CU_MEM_HANDLE_TYPE_FABRIC);
CHECK_VALUE(AllocationType::kPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
CHECK_VALUE(LocationType::kDevice, CU_MEM_LOCATION_TYPE_DEVICE);
CHECK_VALUE(AccessFlags::kNone, CU_MEM_ACCESS_FLAGS_PROT_NONE);
CHECK_VALUE(AccessFlags::kRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
CHECK_VALUE(AccessFlags::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
CHECK_VALUE(Granularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
CHECK_VALUE(Granularity::kRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

CHECK_VALUE(kIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
CHECK_VALUE(kHostPortable, CU_MEMHOSTREGISTER_PORTABLE);
CHECK_VALUE(kHostPortable, CU_MEMHOSTALLOC_PORTABLE);
CHECK_VALUE(kHostDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
CHECK_VALUE(kHostDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
CHECK_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
CHECK_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
CHECK_VALUE(kEventInterprocess, CU_EVENT_INTERPROCESS);
CHECK_VALUE(CaptureStatus::kNone, CU_STREAM_CAPTURE_STATUS_NONE);
CHECK_VALUE(CaptureStatus::kActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
CHECK_VALUE(CaptureStatus::kInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
CHECK_VALUE(kWaitGreaterOrEqual, CU_STREAM_WAIT_VALUE_GEQ);
CHECK_VALUE(kWriteDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
CHECK_VALUE(MemoryOperationKind::kWaitValue32, CU_STREAM_MEM_OP_WAIT_VALUE_32);
CHECK_VALUE(MemoryOperationKind::kWriteValue32, CU_STREAM_MEM_OP_WRITE_VALUE_32);
CHECK_VALUE(kProcAddressLegacyStream, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
CHECK_VALUE(ProcAddressStatus::kSuccess, CU_GET_PROC_ADDRESS_SUCCESS);
CHECK_VALUE(ProcAddressStatus::kSymbolNotFound, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
CHECK_VALUE(ProcAddressStatus::kVersionNotSufficient, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
#undef CHECK_VALUE

#define CHECK_FIELD(Ours, ours, Theirs, theirs)                    \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs)); \
  static_assert(sizeof(Ours::ours) == sizeof(Theirs::theirs))
static_assert(sizeof(Location) == sizeof(CUmemLocation));
CHECK_FIELD(Location, type, CUmemLocation, type);
CHECK_FIELD(Location, id, CUmemLocation, id);
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
CHECK_FIELD(AllocationProperties, type, CUmemAllocationProp, type);
CHECK_FIELD(AllocationProperties, requested_handle_types, CUmemAllocationProp,
            requestedHandleTypes);
CHECK_FIELD(AllocationProperties, location, CUmemAllocationProp, location);
CHECK_FIELD(AllocationProperties, win32_handle_metadata, CUmemAllocationProp, win32HandleMetaData);
CHECK_FIELD(AllocationProperties, compression_type, CUmemAllocationProp,
            allocFlags.compressionType);
CHECK_FIELD(AllocationProperties, gpu_direct_rdma_capable, CUmemAllocationProp,
            allocFlags.gpuDirectRDMACapable);
CHECK_FIELD(AllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
CHECK_FIELD(AccessDescription, location, CUmemAccessDesc, location);
CHECK_FIELD(AccessDescription, flags, CUmemAccessDesc, flags);
static_assert(sizeof(IpcMemoryHandle) == sizeof(CUipcMemHandle));
static_assert(sizeof(IpcEventHandle) == sizeof(CUipcEventHandle));
static_assert(sizeof(FabricHandle) == sizeof(CUmemFabricHandle));
static_assert(sizeof(Uuid) == sizeof(CUuuid));
static_assert(sizeof(MemoryOperation) == sizeof(CUstreamBatchMemOpParams));
CHECK_FIELD(MemoryOperation, kind, CUstreamBatchMemOpParams, waitValue.operation);
CHECK_FIELD(MemoryOperation, address, CUstreamBatchMemOpParams, waitValue.address);
CHECK_FIELD(MemoryOperation, value, CUstreamBatchMemOpParams, waitValue.value);
CHECK_FIELD(MemoryOperation, flags, CUstreamBatchMemOpParams, waitValue.flags);
CHECK_FIELD(MemoryOperation, alias, CUstreamBatchMemOpParams, waitValue.alias);
CHECK_FIELD(MemoryOperation, kind, CUstreamBatchMemOpParams, writeValue.operation);
CHECK_FIELD(MemoryOperation, address, CUstreamBatchMemOpParams, writeValue.address);
CHECK_FIELD(MemoryOperation, value, CUstreamBatchMemOpParams, writeValue.value);
CHECK_FIELD(MemoryOperation, flags, CUstreamBatchMemOpParams, writeValue.flags);
#undef CHECK_FIELD

TEST(declarations_agree_with_cuda_headers) {
  // What can differ did when this file was compiled. Old headers do not know both batch copies.
  CHECK_GE(CUDA_VERSION, Driver::kOldestVersion);
}

}  // namespace
}  // namespace freescale::cuda

#else

namespace {

TEST(declarations_agree_with_cuda_headers) {
  SKIP("no headers of CUDA: python -m pip install nvidia-cuda-runtime, then configure again");
}

}  // namespace

#endif
