#pragma once

#include <cstdint>

#include "cpp/device/cuda_types.h"

// What tests may ask of the stand-in driver beside the driver API; found by dlsym in the library
// that they loaded. Callable from any thread, and without a current context but for
// fake_cuda_launch_kernel.
extern "C" {

// A kernel that fills every SM of the stream's device until `*until` is not zero (null: ends at
// once). The first launch of a name is loaded first, unless CUDA_MODULE_LOADING=EAGER: it holds the
// context's lock until every stream of the context has drained. The stream's context must be
// current.
freescale::cuda::Code fake_cuda_launch_kernel(freescale::cuda::Stream stream, const char* name,
                                              const uint32_t* until);

// Makes the `nth` occurrence from now on, counted from 1, of a kind of fault happen; kinds as in
// FAKE_CUDA_FAULTS (README.md). An unknown kind ends the process.
void fake_cuda_inject(const char* kind, int nth, int argument);

// Ends all waits that a wait_hung holds, now and later.
void fake_cuda_release_hung();

// From now on the stream says that it is being captured into a graph, or no longer.
void fake_cuda_set_capturing(freescale::cuda::Stream stream, bool capturing);

// Memory of the current device's pool, as cuMemAllocAsync gives: no other process can open it.
freescale::cuda::Code fake_cuda_allocate_pooled(freescale::cuda::DevicePtr* address, size_t bytes);

// What goes on in this process at the moment.
struct FakeCudaState {
  int lock_waiters;       // threads in a call that wait for the context's lock
  int draining_launches;  // first launches that hold it until the context's streams are idle
  int full_queues;        // calls that hold it until their stream has room
  int blocked_copies;     // copies whose stream has got to them, and whose engine has another turn
  int running_kernels;
  int sm_waiters;     // copies that need an SM and have none
  int polling_waits;  // stream waits that are not satisfied yet
  uint64_t copies_done;
  int reservations;  // of addresses, by cuMemAddressReserve
  int streams;       // that were created and not destroyed, default streams in use included
};
FakeCudaState fake_cuda_state();
}
