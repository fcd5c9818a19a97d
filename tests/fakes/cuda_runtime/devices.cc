// Devices: which there are, which is current, and what is said of them.

#include <cstdio>
#include <cstring>

#include "tests/fakes/cuda_runtime/runtime.h"

using namespace fake_cudart;  // NOLINT: entry points have no namespace
using freescale::cuda::Context;
using freescale::cuda::DeviceAttribute;

namespace {

constexpr size_t kKiB = 1024;

Code check_device(const Below& below, int ordinal) {
  freescale::cuda::Device device = 0;
  return below.driver().device_get.code(&device, ordinal);
}

// Facts that torch looks at to size kernels; those of compute capability 9.0.
void describe_kernels(cudaDeviceProp* properties) {
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->maxBlocksPerMultiProcessor = 32;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 0x7fffffff;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 0xffff;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->sharedMemPerBlock = 48 * kKiB;
  properties->sharedMemPerBlockOptin = 227 * kKiB;
  properties->sharedMemPerMultiprocessor = 228 * kKiB;
  properties->l2CacheSize = 50 << 20;
  properties->memoryBusWidth = 5120;
  properties->concurrentKernels = 1;
}

Code describe(const Below& below, cudaDeviceProp* properties, int device) {
  std::memset(properties, 0, sizeof(*properties));
  const auto& driver = below.driver();
  Code code = driver.device_get_name.code(properties->name, sizeof(properties->name), device);
  if (code != Code::kSuccess) return code;
  freescale::cuda::Uuid uuid;
  driver.device_get_uuid.code(&uuid, device);
  std::memcpy(properties->uuid.bytes, uuid.bytes, sizeof(uuid.bytes));
  below.device_total_mem(&properties->totalGlobalMem, device);
  driver.device_get_attribute.code(&properties->asyncEngineCount,
                                   DeviceAttribute::kAsyncEngineCount, device);
  driver.device_get_attribute.code(&properties->canUseHostPointerForRegisteredMem,
                                   DeviceAttribute::kCanUseHostPointerForRegisteredMemory, device);
  properties->streamPrioritiesSupported = 1;
  properties->unifiedAddressing = 1;
  properties->canMapHostMemory = 1;
  properties->hostRegisterSupported = 1;
  properties->pciBusID = device + 1;
  describe_kernels(properties);
  return Code::kSuccess;
}

Code attribute_of(const Below& below, int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const Code code = describe(below, &properties, device); code != Code::kSuccess) return code;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      return Code::kSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      return Code::kSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      return Code::kSuccess;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      return Code::kSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      return Code::kSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = properties.maxThreadsPerMultiProcessor;
      return Code::kSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      return Code::kSuccess;
    default:
      // The rest has the driver's numbers.
      return below.driver().device_get_attribute.code(
          value, static_cast<DeviceAttribute>(attribute), device);
  }
}

}  // namespace

FAKE_CUDART_EXPORT cudaError_t cudaDriverGetVersion(int* version) {
  return call_without_context([&](const Below& below) {
    *version = below.driver().version();
    return Code::kSuccess;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

FAKE_CUDART_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call_without_context(
      [&](const Below& below) { return below.driver().device_get_count.code(count); });
}

FAKE_CUDART_EXPORT cudaError_t cudaGetDevice(int* device) {
  return call_without_context([&](const Below& below) {
    Context current = nullptr;
    const Code code = below.driver().ctx_get_current.code(&current);
    *device = 0;
    return code != Code::kSuccess || current == nullptr
               ? code
               : below.driver().ctx_get_device.code(device);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaSetDevice(int device) {
  return call_without_context([&](const Below& below) {
    const Code code = check_device(below, device);
    return code == Code::kSuccess ? make_current(below, device) : code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaDeviceSynchronize() {
  return call([](const Below& below) { return below.ctx_synchronize(); });
}

FAKE_CUDART_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call_without_context(
      [&](const Below& below) { return describe(below, properties, device); });
}

FAKE_CUDART_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                                      int device) {
  return call_without_context(
      [&](const Below& below) { return attribute_of(below, value, attribute, device); });
}

FAKE_CUDART_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return call_without_context([&](const Below& below) {
    std::snprintf(text, static_cast<size_t>(bytes), "0000:%02x:00.0", device + 1);
    return check_device(below, device);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call_without_context([&](const Below& below) {
    return below.driver().device_can_access_peer.code(can, device, peer);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call([&](const Below& below) {
    Context context = nullptr;
    Code code = below.driver().device_primary_ctx_retain.code(&context, peer);
    if (code != Code::kSuccess) return code;
    code = below.ctx_enable_peer_access(context, flags);
    below.driver().device_primary_ctx_release.code(peer);
    return code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call([&](const Below& below) {
    return below.driver().ctx_get_stream_priority_range.code(least, greatest);
  });
}

// There is no profiler to start or stop.
FAKE_CUDART_EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
FAKE_CUDART_EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }
