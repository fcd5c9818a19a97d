// Errors: what the last one of each thread was, and the texts.

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "tests/fakes/cuda_runtime/kernels.h"
#include "tests/fakes/cuda_runtime/runtime.h"

namespace fake_cudart {
namespace {

// What a kernel that cannot run fails with: the device has no code for it.
constexpr cudaError_t kKernelRefused = cudaErrorNoKernelImageForDevice;

// The driver's codes are the runtime's, for those that come up here.
#define SAME_CODE(code, error) static_assert(static_cast<int>(Code::code) == error)
SAME_CODE(kSuccess, cudaSuccess);
SAME_CODE(kInvalidValue, cudaErrorInvalidValue);
SAME_CODE(kOutOfMemory, cudaErrorMemoryAllocation);
SAME_CODE(kNotInitialized, cudaErrorInitializationError);
SAME_CODE(kNoDevice, cudaErrorNoDevice);
SAME_CODE(kInvalidDevice, cudaErrorInvalidDevice);
SAME_CODE(kInvalidContext, cudaErrorDeviceUninitialized);
SAME_CODE(kMapFailed, cudaErrorMapBufferObjectFailed);
SAME_CODE(kPeerAccessUnsupported, cudaErrorPeerAccessUnsupported);
SAME_CODE(kOperatingSystem, cudaErrorOperatingSystem);
SAME_CODE(kInvalidHandle, cudaErrorInvalidResourceHandle);
SAME_CODE(kNotFound, cudaErrorSymbolNotFound);
SAME_CODE(kNotReady, cudaErrorNotReady);
SAME_CODE(kIllegalAddress, cudaErrorIllegalAddress);
SAME_CODE(kHostMemoryAlreadyRegistered, cudaErrorHostMemoryAlreadyRegistered);
SAME_CODE(kHostMemoryNotRegistered, cudaErrorHostMemoryNotRegistered);
SAME_CODE(kLaunchFailed, cudaErrorLaunchFailure);
SAME_CODE(kNotPermitted, cudaErrorNotPermitted);
SAME_CODE(kNotSupported, cudaErrorNotSupported);
SAME_CODE(kStreamCaptureUnsupported, cudaErrorStreamCaptureUnsupported);
SAME_CODE(kUnknown, cudaErrorUnknown);
#undef SAME_CODE

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_kernel;

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

}  // namespace

cudaError_t finish(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t refuse_kernel(const char* call, const void* function) {
  last_kernel = std::string("the stand-in CUDA runtime cannot run kernels; ") + call + " of " +
                demangled(name_of_kernel(function));
  return finish(kKernelRefused);
}

}  // namespace fake_cudart

using namespace fake_cudart;  // NOLINT: entry points have no namespace

FAKE_CUDART_EXPORT cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

FAKE_CUDART_EXPORT cudaError_t cudaPeekAtLastError() { return last_error; }

FAKE_CUDART_EXPORT const char* cudaGetErrorString(cudaError_t error) {
  if (error == kKernelRefused && !last_kernel.empty()) return last_kernel.c_str();
  return cudaGetErrorName(error);
}

FAKE_CUDART_EXPORT const char* cudaGetErrorName(cudaError_t error) {
  const Below* below = Below::get();
  const char* name = nullptr;
  if (below != nullptr) below->get_error_string(static_cast<Code>(error), &name);
  return name != nullptr ? name : "unrecognized error code";
}
