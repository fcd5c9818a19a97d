#pragma once

#include "cpp/device/cuda_types.h"

// Calls of the driver API that this project does not make, but the CUDA runtime does: those of the
// stand-in runtime (tests/fakes/cuda_runtime). Listed as in cpp/device/cuda_calls.h.
#define FAKE_CUDA_RUNTIME_CALLS(X)                                                               \
  X(device_total_mem, cuDeviceTotalMem, 3020, (size_t* bytes, Device device))                    \
  X(device_primary_ctx_get_state, cuDevicePrimaryCtxGetState, 7000,                              \
    (Device device, unsigned* flags, int* active))                                               \
  X(ctx_synchronize, cuCtxSynchronize, 2000, ())                                                 \
  X(ctx_enable_peer_access, cuCtxEnablePeerAccess, 4000, (Context peer, unsigned flags))         \
  X(mem_get_info, cuMemGetInfo, 3020, (size_t* free, size_t* total))                             \
  X(memset_async, cuMemsetD8Async, 3020,                                                         \
    (DevicePtr to, unsigned char value, size_t bytes, Stream stream))                            \
  X(launch_host_func, cuLaunchHostFunc, 10000,                                                   \
    (Stream stream, HostFunction * function, void* argument))                                    \
  X(event_elapsed_time, cuEventElapsedTime, 2000, (float* milliseconds, Event start, Event end)) \
  X(ipc_get_event_handle, cuIpcGetEventHandle, 4010, (IpcEventHandle * handle, Event event))     \
  X(ipc_open_event_handle, cuIpcOpenEventHandle, 4010, (Event * event, IpcEventHandle handle))   \
  X(get_error_string, cuGetErrorString, 6000, (Code code, const char** text))

namespace freescale::cuda {

using HostFunction = void(void* argument);

// Names an event to other processes of this host.
struct IpcEventHandle {
  char reserved[64];
};

inline constexpr unsigned kEventInterprocess = 4;  // and without timing

// What torch asks before it creates memory in two halves.
inline constexpr auto kRdmaOfMappedMemory = static_cast<DeviceAttribute>(110);

}  // namespace freescale::cuda

namespace fake_cuda::calls {

using namespace freescale::cuda;  // NOLINT: the signatures are written for that namespace

#define FAKE_CUDA_DECLARE(member, name, version, arguments) Code member arguments;
FAKE_CUDA_RUNTIME_CALLS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE

}  // namespace fake_cuda::calls
