#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/device/segment.h"

// The types and values of the CUDA driver API that this project uses, declared by ourselves: no
// header of CUDA is needed to build, and the names cannot clash with those of a program that
// includes one. Values and layouts are those of cuda.h 12.4 to 13.5 (NVIDIA's "CUDA Driver API"
// reference); tests/cpp/cuda_headers_test.cc compares them with the headers where those are
// installed.
namespace freescale::cuda {

// What every call returns (CUresult). Other values may come; Driver names them.
enum class Code : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kMapFailed = 205,
  kPeerAccessUnsupported = 217,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kUnknown = 999,
};

using Device = int;
using DevicePtr = uint64_t;         // an address of the unified address space
using AllocationHandle = uint64_t;  // physical memory of cuMemCreate

// Of a segment that lies in device memory.
inline DevicePtr address_of(const Segment& segment) {
  return reinterpret_cast<DevicePtr>(segment.data);
}

// Objects of the driver, known by address alone.
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;

// The stream of calls that name none. It waits for all blocking streams, and they for it.
inline constexpr Stream kDefaultStream = nullptr;

enum class DeviceAttribute : int {
  kAsyncEngineCount = 40,
  kStreamPrioritiesSupported = 78,
  kCanUseHostPointerForRegisteredMemory = 91,
  kVirtualMemoryManagementSupported = 102,
  kPosixFileDescriptorHandleSupported = 103,
  kFabricHandleSupported = 128,
};

enum class PointerAttribute : int {
  kContext = 1,              // Context
  kMemoryType = 2,           // MemoryType
  kBufferId = 7,             // uint64_t, never given twice in a process; addresses are
  kDeviceOrdinal = 9,        // int
  kIsLegacyIpcCapable = 10,  // bool
  kRangeStart = 11,          // DevicePtr; of the reservation, where memory is mapped
  kRangeSize = 12,           // size_t
  kMapped = 13,              // bool; reserved addresses may be without memory
  kAllowedHandleTypes = 14,  // uint64_t, bits of HandleType
};

enum class MemoryType : unsigned { kHost = 1, kDevice = 2 };

enum class HandleType : int { kNone = 0, kPosixFileDescriptor = 1, kFabric = 8 };
// `types`: bits of HandleType.
inline bool allows(uint64_t types, HandleType type) {
  return (types & static_cast<uint64_t>(type)) != 0;
}
enum class AllocationType : int { kPinned = 1 };
enum class LocationType : int { kDevice = 1 };
enum class AccessFlags : int { kNone = 0, kRead = 1, kReadWrite = 3 };
enum class Granularity : int { kMinimum = 0, kRecommended = 1 };

struct Location {
  LocationType type = LocationType::kDevice;
  int id = 0;
};

// What cuMemCreate is asked for. For memory of `location` that other processes may map.
struct AllocationProperties {
  AllocationType type = AllocationType::kPinned;
  HandleType requested_handle_types = HandleType::kNone;  // bits: several are allowed
  Location location;
  void* win32_handle_metadata = nullptr;
  unsigned char compression_type = 0;
  unsigned char gpu_direct_rdma_capable = 0;
  uint16_t usage = 0;
  unsigned char reserved[4] = {};
};

struct AccessDescription {
  Location location;
  AccessFlags flags = AccessFlags::kReadWrite;
};

// Names an allocation of cuMemAlloc to other processes of this host.
struct IpcMemoryHandle {
  char reserved[64];
};

// Names an allocation of cuMemCreate to other processes, also of other hosts, by way of the
// service that rules over such names (IMEX).
struct FabricHandle {
  unsigned char data[64];
};

struct Uuid {
  char bytes[16];
};

// Flags are plain bits, as the calls take them.
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kHostPortable = 1;  // pinned for every context, not the current one alone
inline constexpr unsigned kHostDeviceMap = 2;      // has an address on the device
inline constexpr unsigned kStreamNonBlocking = 1;  // does not wait for the default stream
inline constexpr unsigned kEventDisableTiming = 2;

enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

// How a wait compares the word with its value: (int32_t)(word - value) >= 0, so words may wrap.
inline constexpr unsigned kWaitGreaterOrEqual = 0;
// Before the write, everything the stream did earlier is visible to the whole system.
inline constexpr unsigned kWriteDefault = 0;

enum class MemoryOperationKind : int { kWaitValue32 = 1, kWriteValue32 = 2 };

// One element of cuStreamBatchMemOp. The driver's is a union; ours is the member for waits and
// writes of 32 bits, and as large as the union.
struct MemoryOperation {
  MemoryOperationKind kind = MemoryOperationKind::kWaitValue32;
  DevicePtr address = 0;
  uint32_t value = 0;
  uint32_t value_high = 0;  // for 64-bit operations
  unsigned flags = 0;
  DevicePtr alias = 0;  // the driver's own
  uint64_t padding = 0;
};

// cuStreamBatchMemOp takes fewer than this many in one call.
inline constexpr size_t kMemoryOperationLimit = 256;

enum class SourceAccessOrder : int { kStream = 1 };
inline constexpr unsigned kCopyPreferOverlapWithCompute = 1;

struct CopyAttributes {
  SourceAccessOrder source_access_order = SourceAccessOrder::kStream;
  Location source_hint;
  Location destination_hint;
  unsigned flags = 0;
};

inline constexpr uint64_t kProcAddressLegacyStream = 1;
enum class ProcAddressStatus : int { kSuccess = 0, kSymbolNotFound = 1, kVersionNotSufficient = 2 };

}  // namespace freescale::cuda
