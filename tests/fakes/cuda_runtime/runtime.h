#pragma once

#include <cuda_runtime_api.h>

#include "cpp/device/cuda_driver.h"
#include "tests/fakes/cuda_driver/runtime_calls.h"

// What every call of the stand-in runtime goes through on its way to the stand-in driver.
namespace fake_cudart {

using freescale::cuda::Code;

// The driver below: the library that FREESCALE_CUDA_DRIVER names. Immutable, for all threads.
class Below {
 public:
  // Loaded by the first call in the process; null if that failed, which is written to stderr once.
  static const Below* get();

  const freescale::cuda::Driver& driver() const { return *driver_; }

  // The address of a call of the driver in the ABI of a version; null if there is none.
  void* find(const char* name, int version) const;

#define FAKE_CUDART_MEMBER(member, name, version, arguments) \
  decltype(&fake_cuda::calls::member) member = nullptr;
  FAKE_CUDA_RUNTIME_CALLS(FAKE_CUDART_MEMBER)
#undef FAKE_CUDART_MEMBER

 private:
  explicit Below(const freescale::cuda::Driver& driver);

  const freescale::cuda::Driver* driver_;
  freescale::cuda::GetProcAddress* get_proc_address_ = nullptr;
};

// Makes the primary context of a device current in this thread. Kept for the life of the process.
Code make_current(const Below& below, int device);

// As the runtime does: a thread that has chosen no device works on the first.
Code make_any_current(const Below& below);

// What a call returns; an error is also what cudaGetLastError tells this thread.
cudaError_t finish(cudaError_t error);
inline cudaError_t finish(Code code) { return finish(static_cast<cudaError_t>(code)); }

// A call that needs no context: `body` takes the Below and returns a Code.
template <typename Body>
cudaError_t call_without_context(Body body) {
  const Below* below = Below::get();
  return below == nullptr ? finish(cudaErrorNoDevice) : finish(body(*below));
}

// A call in the current context.
template <typename Body>
cudaError_t call(Body body) {
  return call_without_context([&](const Below& below) {
    const Code code = make_any_current(below);
    return code == Code::kSuccess ? body(below) : code;
  });
}

// Fails, with a text that names the kernel and the call that wanted it.
cudaError_t refuse_kernel(const char* call, const void* function);

inline freescale::cuda::DevicePtr address_of(const void* pointer) {
  return reinterpret_cast<freescale::cuda::DevicePtr>(pointer);
}
inline freescale::cuda::Stream driver_stream(cudaStream_t stream) {
  return reinterpret_cast<freescale::cuda::Stream>(stream);
}
inline freescale::cuda::Event driver_event(cudaEvent_t event) {
  return reinterpret_cast<freescale::cuda::Event>(event);
}

}  // namespace fake_cudart

// The runtime's functions are found in the place of the real ones because they come first.
#define FAKE_CUDART_EXPORT extern "C" __attribute__((visibility("default")))
