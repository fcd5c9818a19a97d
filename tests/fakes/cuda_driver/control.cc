#include "tests/fakes/cuda_driver/control.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/fakes/cuda_driver/entry.h"
#include "tests/fakes/cuda_driver/faults.h"
#include "tests/fakes/cuda_driver/memory.h"
#include "tests/fakes/cuda_driver/settings.h"

#define FAKE_CUDA_EXPORT __attribute__((visibility("default")))

using namespace fake_cuda;  // NOLINT: entry points have no namespace
using freescale::cuda::Stream;

extern "C" {

FAKE_CUDA_EXPORT Code fake_cuda_launch_kernel(Stream handle, const char* name,
                                              const uint32_t* until) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  DeviceState& device = entry.device();
  // The hazard of lazy loading (torchcomms#2334, mscclpp#394): everything must end before the code
  // of a kernel is put onto the device, and no call of another thread gets through meanwhile.
  if (Settings::get().lazy_loading && !is_loaded(name)) {
    ++StreamCounters::get().draining_launches;
    device.drain();
    --StreamCounters::get().draining_launches;
  }
  set_loaded(name);

  stream->submit([&device, until](Turn) {
    device.multiprocessors().occupy();
    while (until != nullptr && !device.failed() && __atomic_load_n(until, __ATOMIC_ACQUIRE) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    device.multiprocessors().leave();
  });
  return Code::kSuccess;
}

FAKE_CUDA_EXPORT void fake_cuda_inject(const char* kind, int nth, int argument) {
  inject(kind, nth, argument);
}

FAKE_CUDA_EXPORT void fake_cuda_release_hung() { StreamCounters::get().hung_released = true; }

FAKE_CUDA_EXPORT void fake_cuda_set_capturing(Stream handle, bool capturing) {
  for (int ordinal = 0; ordinal < Settings::get().devices; ++ordinal) {
    const auto stream = DeviceState::get(ordinal)->find_stream(handle);
    if (stream != nullptr) stream->capturing() = capturing;
  }
}

FAKE_CUDA_EXPORT Code fake_cuda_allocate_pooled(DevicePtr* address, size_t bytes) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return AddressSpace::get().allocate(address, bytes, entry.device().ordinal(),
                                      Region::Kind::kPooled);
}

FAKE_CUDA_EXPORT FakeCudaState fake_cuda_state() {
  FakeCudaState state{};
  for (int ordinal = 0; ordinal < Settings::get().devices; ++ordinal) {
    DeviceState& device = *DeviceState::get(ordinal);
    state.lock_waiters += device.lock().waiters();
    state.blocked_copies += device.blocked_copies();
    state.streams += device.streams();
    state.running_kernels += device.multiprocessors().kernels();
    state.sm_waiters += device.multiprocessors().waiters();
  }
  state.draining_launches = StreamCounters::get().draining_launches;
  state.full_queues = StreamCounters::get().full_queues;
  state.polling_waits = StreamCounters::get().polling_waits;
  state.copies_done = StreamCounters::get().copies_done;
  state.reservations = AddressSpace::get().reservations();
  return state;
}
}
