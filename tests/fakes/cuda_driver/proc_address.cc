// What the library exports: the way to everything else.

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fakes/cuda_driver/calls.h"
#include "tests/fakes/cuda_driver/runtime_calls.h"
#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda {
namespace {

using freescale::cuda::Code;
using freescale::cuda::ProcAddressStatus;

// ABIs that nobody may ask for, because the project's declarations are of another one. A call
// through one would pass wrong arguments on a real driver; here it fails.
Code wrong_abi() { return Code::kNotSupported; }

struct Abi {
  const char* name;
  int version;  // the first with it
  void* entry;
};

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

const std::vector<Abi>& abis() {
  static const auto* const all = new std::vector<Abi>{
      {"cuDeviceGetUuid", 9020, address(wrong_abi)},
      {"cuDevicePrimaryCtxRelease", 7000, address(wrong_abi)},
      {"cuCtxPushCurrent", 2000, address(wrong_abi)},
      {"cuCtxPopCurrent", 2000, address(wrong_abi)},
      {"cuCtxGetDevice", 13000, address(wrong_abi)},
      {"cuMemAlloc", 2000, address(wrong_abi)},
      {"cuMemFree", 2000, address(wrong_abi)},
      {"cuMemGetAddressRange", 2000, address(wrong_abi)},
      {"cuIpcOpenMemHandle", 4010, address(wrong_abi)},
      {"cuMemHostRegister", 4000, address(wrong_abi)},
      {"cuMemHostGetDevicePointer", 2020, address(wrong_abi)},
      {"cuStreamDestroy", 2000, address(wrong_abi)},
      {"cuEventDestroy", 2000, address(wrong_abi)},
      {"cuStreamWaitValue32", 8000, address(wrong_abi)},
      {"cuStreamWriteValue32", 8000, address(wrong_abi)},
      {"cuStreamBatchMemOp", 8000, address(wrong_abi)},
#define FAKE_CUDA_ABI(member, name, version, arguments) {#name, version, address(calls::member)},
      FREESCALE_CUDA_CALLS(FAKE_CUDA_ABI) FAKE_CUDA_RUNTIME_CALLS(FAKE_CUDA_ABI)
#undef FAKE_CUDA_ABI
          {"cuGetErrorName", 6000, address(calls::get_error_name)},
      {"cuMemcpyBatchAsync", 12080, address(calls::memcpy_batch_async_with_fail_index)},
      {"cuMemcpyBatchAsync", 13000, address(calls::memcpy_batch_async)},
  };
  return *all;
}

}  // namespace

namespace calls {

Code get_error_name(Code code, const char** name) {
  switch (code) {
#define FAKE_CUDA_NAME(value, text) \
  case Code::value:                 \
    *name = text;                   \
    return Code::kSuccess
    FAKE_CUDA_NAME(kSuccess, "CUDA_SUCCESS");
    FAKE_CUDA_NAME(kInvalidValue, "CUDA_ERROR_INVALID_VALUE");
    FAKE_CUDA_NAME(kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY");
    FAKE_CUDA_NAME(kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED");
    FAKE_CUDA_NAME(kStubLibrary, "CUDA_ERROR_STUB_LIBRARY");
    FAKE_CUDA_NAME(kNoDevice, "CUDA_ERROR_NO_DEVICE");
    FAKE_CUDA_NAME(kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE");
    FAKE_CUDA_NAME(kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT");
    FAKE_CUDA_NAME(kMapFailed, "CUDA_ERROR_MAP_FAILED");
    FAKE_CUDA_NAME(kPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED");
    FAKE_CUDA_NAME(kOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM");
    FAKE_CUDA_NAME(kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE");
    FAKE_CUDA_NAME(kNotFound, "CUDA_ERROR_NOT_FOUND");
    FAKE_CUDA_NAME(kNotReady, "CUDA_ERROR_NOT_READY");
    FAKE_CUDA_NAME(kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS");
    FAKE_CUDA_NAME(kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED");
    FAKE_CUDA_NAME(kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED");
    FAKE_CUDA_NAME(kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED");
    FAKE_CUDA_NAME(kNotPermitted, "CUDA_ERROR_NOT_PERMITTED");
    FAKE_CUDA_NAME(kNotSupported, "CUDA_ERROR_NOT_SUPPORTED");
    FAKE_CUDA_NAME(kStreamCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
    FAKE_CUDA_NAME(kUnknown, "CUDA_ERROR_UNKNOWN");
#undef FAKE_CUDA_NAME
  }
  *name = nullptr;
  return Code::kInvalidValue;
}

}  // namespace calls
}  // namespace fake_cuda

extern "C" __attribute__((visibility("default"))) freescale::cuda::Code cuGetProcAddress_v2(
    const char* name, void** entry, int version, uint64_t,
    freescale::cuda::ProcAddressStatus* status) {
  using freescale::cuda::Code;
  using freescale::cuda::ProcAddressStatus;
  *entry = nullptr;
  const int driver = fake_cuda::Settings::get().version;
  if (version > driver) return Code::kInvalidValue;

  ProcAddressStatus found = ProcAddressStatus::kSymbolNotFound;
  int best = 0;
  for (const fake_cuda::Abi& abi : fake_cuda::abis()) {
    if (std::strcmp(abi.name, name) != 0) continue;
    if (abi.version <= version && abi.version > best) {
      best = abi.version;
      *entry = abi.entry;
      found = ProcAddressStatus::kSuccess;
    } else if (*entry == nullptr) {
      found = ProcAddressStatus::kVersionNotSufficient;
    }
  }
  if (status != nullptr) *status = found;
  return Code::kSuccess;
}
