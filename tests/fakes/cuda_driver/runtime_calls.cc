#include "tests/fakes/cuda_driver/runtime_calls.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "tests/fakes/cuda_driver/calls.h"
#include "tests/fakes/cuda_driver/entry.h"
#include "tests/fakes/cuda_driver/exported.h"
#include "tests/fakes/cuda_driver/memory.h"
#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda::calls {
namespace {

// Of every device. No allocation fails for want of it; programs look at it to size their caches.
constexpr size_t kMemory = size_t{16} << 30;

}  // namespace

Code device_total_mem(size_t* bytes, Device device) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  if (DeviceState::get(device) == nullptr) return Code::kInvalidDevice;
  *bytes = kMemory;
  return Code::kSuccess;
}

Code device_primary_ctx_get_state(Device device, unsigned* flags, int* active) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  DeviceState* state = DeviceState::get(device);
  if (state == nullptr) return Code::kInvalidDevice;
  *flags = 0;
  *active = state->owners() > 0 ? 1 : 0;
  return Code::kSuccess;
}

Code ctx_synchronize() {
  const Entry entry(Entry::Lock::kLeave);
  if (entry.code() != Code::kSuccess) return entry.code();
  entry.device().drain();
  return entry.device().error();
}

Code ctx_enable_peer_access(Context peer, unsigned flags) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  if (flags != 0 || peer == nullptr) return Code::kInvalidValue;
  const int other = reinterpret_cast<DeviceState*>(peer)->ordinal();
  return Settings::get().can_access_peer(entry.device().ordinal(), other)
             ? Code::kSuccess
             : Code::kPeerAccessUnsupported;
}

Code mem_get_info(size_t* free, size_t* total) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const size_t used = AddressSpace::get().allocated_bytes(entry.device().ordinal());
  *total = kMemory;
  *free = used < kMemory ? kMemory - used : 0;
  return Code::kSuccess;
}

Code memset_async(DevicePtr to, unsigned char value, size_t bytes, Stream handle) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  DeviceState& device = entry.device();
  std::optional<Place> place = AddressSpace::get().resolve(to, bytes, device.ordinal());
  // Memory that the driver does not know cannot be set.
  if (!place.has_value() || place->region == nullptr) return Code::kInvalidValue;
  // A kernel of the driver's own does it.
  stream->submit([&device, place = std::move(*place), value, bytes](Turn) {
    device.multiprocessors().wait_free();
    if (!device.failed()) std::memset(place.data, value, bytes);
  });
  return Code::kSuccess;
}

Code launch_host_func(Stream handle, HostFunction* function, void* argument) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  if (function == nullptr) return Code::kInvalidValue;
  stream->submit([&device = entry.device(), function, argument](Turn) {
    if (!device.failed()) function(argument);
  });
  return Code::kSuccess;
}

Code event_elapsed_time(float* milliseconds, Event start, Event end) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  if (start == nullptr || end == nullptr) return Code::kInvalidHandle;
  const EventState& first = *reinterpret_cast<EventState*>(start);
  const EventState& second = *reinterpret_cast<EventState*>(end);
  const auto from = first.latest(), to = second.latest();
  if (!first.timed() || !second.timed() || from == nullptr || to == nullptr) {
    return Code::kInvalidHandle;
  }
  if (!from->finished() || !to->finished()) return Code::kNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time() - from->time()).count();
  return Code::kSuccess;
}

Code ipc_get_event_handle(IpcEventHandle* handle, Event event) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const SharedEvent* shared =
      event == nullptr ? nullptr : reinterpret_cast<EventState*>(event)->shared();
  if (shared == nullptr) return Code::kInvalidHandle;
  const Exported exported = Exported::describe(shared->fd(), SharedEvent::kMagic);
  static_assert(sizeof(exported) <= sizeof(*handle));
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &exported, sizeof(exported));
  return Code::kSuccess;
}

Code ipc_open_event_handle(Event* event, IpcEventHandle handle) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  Exported exported;
  std::memcpy(&exported, &handle, sizeof(exported));
  freescale::UniqueFd fd;
  const Code code = exported.open(SharedEvent::kMagic, &fd);
  if (code != Code::kSuccess) return code;
  std::shared_ptr<SharedEvent> shared = SharedEvent::adopt(std::move(fd));
  if (shared == nullptr) return Code::kInvalidHandle;
  *event = reinterpret_cast<Event>(new EventState(std::move(shared)));
  return Code::kSuccess;
}

Code get_error_string(Code code, const char** text) { return get_error_name(code, text); }

}  // namespace fake_cuda::calls

// torch looks for this one by its name in the library, as its loader of run-time compiled kernels
// does for all it calls.
extern "C" __attribute__((visibility("default"))) freescale::cuda::Code cuDevicePrimaryCtxGetState(
    freescale::cuda::Device device, unsigned* flags, int* active) {
  return fake_cuda::calls::device_primary_ctx_get_state(device, flags, active);
}
