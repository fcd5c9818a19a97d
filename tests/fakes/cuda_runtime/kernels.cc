// Kernels are known by name, and refused.

#include "tests/fakes/cuda_runtime/kernels.h"

#include <mutex>
#include <unordered_map>

#include "tests/fakes/cuda_runtime/runtime.h"

namespace fake_cudart {
namespace {

// What the constructors of libraries with kernels register.
struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, const char*> names;
  static Kernels& get() {
    static Kernels* const kernels = new Kernels();
    return *kernels;
  }
};

}  // namespace

const char* name_of_kernel(const void* function) {
  Kernels& kernels = Kernels::get();
  const std::lock_guard lock(kernels.mutex);
  const auto found = kernels.names.find(function);
  return found == kernels.names.end() ? "an unknown kernel" : found->second;
}

}  // namespace fake_cudart

using namespace fake_cudart;  // NOLINT: entry points have no namespace

// --- What the code that nvcc writes calls (crt/host_runtime.h) ----------------------------------

FAKE_CUDART_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

FAKE_CUDART_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
FAKE_CUDART_EXPORT void __cudaUnregisterFatBinary(void**) {}
FAKE_CUDART_EXPORT char __cudaInitModule(void**) { return 1; }
FAKE_CUDART_EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int,
                                          int) {}

FAKE_CUDART_EXPORT void __cudaRegisterFunction(void**, const char* host_function, char*,
                                               const char* device_name, int, uint3*, uint3*, dim3*,
                                               dim3*, int*) {
  Kernels& kernels = Kernels::get();
  const std::lock_guard lock(kernels.mutex);
  kernels.names[host_function] = device_name;
}

// Between the two calls a launch has its configuration here, which nobody needs.
FAKE_CUDART_EXPORT unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }

FAKE_CUDART_EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared,
                                                          void* stream) {
  *grid = *block = dim3();
  *shared = 0;
  *static_cast<cudaStream_t*>(stream) = nullptr;
  return cudaSuccess;
}

// A kernel's handle is what the host launches it with.
FAKE_CUDART_EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

FAKE_CUDART_EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t,
                                                  cudaStream_t) {
  return refuse_kernel("__cudaLaunchKernel", kernel);
}

// --- What programs call -------------------------------------------------------------------------

FAKE_CUDART_EXPORT cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t,
                                                cudaStream_t) {
  return refuse_kernel("cudaLaunchKernel", function);
}

FAKE_CUDART_EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function,
                                                   void**) {
  return refuse_kernel("cudaLaunchKernelExC", function);
}

FAKE_CUDART_EXPORT cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**,
                                                           size_t, cudaStream_t) {
  return refuse_kernel("cudaLaunchCooperativeKernel", function);
}

FAKE_CUDART_EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void* function) {
  return refuse_kernel("cudaFuncGetAttributes", function);
}

FAKE_CUDART_EXPORT cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int) {
  return refuse_kernel("cudaFuncSetAttribute", function);
}

FAKE_CUDART_EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                               cudaFuncAttribute, int, int) {
  return refuse_kernel("cudaKernelSetAttributeForDevice", kernel);
}

FAKE_CUDART_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*,
                                                                             const void* function,
                                                                             int, size_t) {
  return refuse_kernel("cudaOccupancyMaxActiveBlocksPerMultiprocessor", function);
}

FAKE_CUDART_EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int*, const void* function, int, size_t, unsigned) {
  return refuse_kernel("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", function);
}
