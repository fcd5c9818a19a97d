// Memory of devices and pinned memory of the host.

#include <cstring>

#include "tests/fakes/cuda_runtime/runtime.h"

using namespace fake_cudart;  // NOLINT: entry points have no namespace
using freescale::cuda::DevicePtr;
using freescale::cuda::IpcMemoryHandle;
using freescale::cuda::MemoryType;
using freescale::cuda::PointerAttribute;

namespace {

Code describe_host(const Below& below, cudaPointerAttributes* attributes, const void* pointer) {
  DevicePtr on_device = 0;
  auto* host = const_cast<void*>(pointer);
  attributes->hostPointer = host;
  if (below.driver().mem_host_get_device_pointer.code(&on_device, host, 0) == Code::kSuccess) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = reinterpret_cast<void*>(on_device);
    return below.driver().ctx_get_device.code(&attributes->device);
  }
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = cudaInvalidDeviceId;
  return Code::kSuccess;
}

Code describe(const Below& below, cudaPointerAttributes* attributes, const void* pointer) {
  std::memset(attributes, 0, sizeof(*attributes));
  const auto& ask = below.driver().pointer_get_attribute;
  MemoryType type{};
  const Code code = ask.code(&type, PointerAttribute::kMemoryType, address_of(pointer));
  if (code == Code::kInvalidValue || (code == Code::kSuccess && type == MemoryType::kHost)) {
    return describe_host(below, attributes, pointer);
  }
  if (code != Code::kSuccess) return code;
  attributes->type = cudaMemoryTypeDevice;
  attributes->devicePointer = const_cast<void*>(pointer);
  return ask.code(&attributes->device, PointerAttribute::kDeviceOrdinal, address_of(pointer));
}

}  // namespace

FAKE_CUDART_EXPORT cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return call([&](const Below& below) {
    DevicePtr address = 0;
    const Code code = below.driver().mem_alloc.code(&address, bytes);
    *pointer = reinterpret_cast<void*>(address);
    return code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaFree(void* pointer) {
  return call([&](const Below& below) {
    // Also how programs have a context made: nothing to free is no error.
    return pointer == nullptr ? Code::kSuccess : below.driver().mem_free.code(address_of(pointer));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&](const Below& below) { return below.mem_get_info(free, total); });
}

FAKE_CUDART_EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                        const void* pointer) {
  return call([&](const Below& below) { return describe(below, attributes, pointer); });
}

FAKE_CUDART_EXPORT cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return call([&](const Below& below) {
    return below.driver().mem_host_alloc.code(pointer, bytes, flags);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaFreeHost(void* pointer) {
  return call([&](const Below& below) { return below.driver().mem_free_host.code(pointer); });
}

FAKE_CUDART_EXPORT cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return call([&](const Below& below) {
    return below.driver().mem_host_register.code(pointer, bytes, flags);
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaHostUnregister(void* pointer) {
  return call([&](const Below& below) { return below.driver().mem_host_unregister.code(pointer); });
}

FAKE_CUDART_EXPORT cudaError_t cudaHostGetDevicePointer(void** pointer, void* host,
                                                        unsigned flags) {
  return call([&](const Below& below) {
    DevicePtr address = 0;
    const Code code = below.driver().mem_host_get_device_pointer.code(&address, host, flags);
    *pointer = reinterpret_cast<void*>(address);
    return code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  static_assert(sizeof(*handle) == sizeof(IpcMemoryHandle));
  return call([&](const Below& below) {
    return below.driver().ipc_get_mem_handle.code(reinterpret_cast<IpcMemoryHandle*>(handle),
                                                  address_of(pointer));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle,
                                                    unsigned flags) {
  return call([&](const Below& below) {
    IpcMemoryHandle copied;
    std::memcpy(&copied, &handle, sizeof(copied));
    DevicePtr address = 0;
    const Code code = below.driver().ipc_open_mem_handle.code(&address, copied, flags);
    *pointer = reinterpret_cast<void*>(address);
    return code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return call([&](const Below& below) {
    return below.driver().ipc_close_mem_handle.code(address_of(pointer));
  });
}
