#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/fakes/cuda_driver/calls.h"
#include "tests/fakes/cuda_driver/entry.h"
#include "tests/fakes/cuda_driver/runtime_calls.h"
#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda::calls {
namespace {

// Of compute capability 9: 0 is least urgent, -5 most.
constexpr int kGreatestPriority = -5;
// Only cuda-python asks for it, so it is none of cuda_types.h.
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;

DeviceState* device_of(Context context) { return reinterpret_cast<DeviceState*>(context); }

Code check_device(Device device) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  return DeviceState::get(device) != nullptr ? Code::kSuccess : Code::kInvalidDevice;
}

}  // namespace

Code init(unsigned flags) {
  if (flags != 0) return Code::kInvalidValue;
  if (Settings::get().devices == 0) return Code::kNoDevice;
  set_initialized();
  return initialized();
}

Code driver_get_version(int* version) {
  *version = Settings::get().version;
  return Code::kSuccess;
}

Code device_get_count(int* count) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  *count = Settings::get().devices;
  return Code::kSuccess;
}

Code device_get(Device* device, int ordinal) {
  if (const Code code = check_device(ordinal); code != Code::kSuccess) return code;
  *device = ordinal;
  return Code::kSuccess;
}

Code device_get_name(char* name, int bytes, Device device) {
  if (const Code code = check_device(device); code != Code::kSuccess) return code;
  std::snprintf(name, static_cast<size_t>(bytes), "Stand-in GPU");
  return Code::kSuccess;
}

Code device_get_uuid(Uuid* uuid, Device device) {
  if (const Code code = check_device(device); code != Code::kSuccess) return code;
  std::memset(uuid->bytes, 0, sizeof(uuid->bytes));
  std::snprintf(uuid->bytes, sizeof(uuid->bytes), "stand-in %d", device);
  return Code::kSuccess;
}

Code device_get_attribute(int* value, DeviceAttribute attribute, Device device) {
  if (const Code code = check_device(device); code != Code::kSuccess) return code;
  switch (static_cast<int>(attribute)) {
    case kComputeCapabilityMajor:
      *value = 9;
      return Code::kSuccess;
    case kComputeCapabilityMinor:
      *value = 0;
      return Code::kSuccess;
  }
  switch (attribute) {
    case DeviceAttribute::kAsyncEngineCount:
      *value = Settings::get().engines;
      return Code::kSuccess;
    case DeviceAttribute::kStreamPrioritiesSupported:
    case DeviceAttribute::kVirtualMemoryManagementSupported:
    case DeviceAttribute::kPosixFileDescriptorHandleSupported:
      *value = 1;
      return Code::kSuccess;
    case DeviceAttribute::kFabricHandleSupported:
      *value = Settings::get().fabric == Fabric::kYes ? 1 : 0;
      return Code::kSuccess;
    case DeviceAttribute::kCanUseHostPointerForRegisteredMemory:
      *value = 0;
      return Code::kSuccess;
  }
  if (attribute != kRdmaOfMappedMemory) return Code::kInvalidValue;
  *value = 0;
  return Code::kSuccess;
}

Code device_can_access_peer(int* can, Device device, Device peer) {
  if (const Code code = check_device(device); code != Code::kSuccess) return code;
  if (const Code code = check_device(peer); code != Code::kSuccess) return code;
  *can = Settings::get().can_access_peer(device, peer);
  return Code::kSuccess;
}

Code device_primary_ctx_retain(Context* context, Device device) {
  if (const Code code = check_device(device); code != Code::kSuccess) return code;
  DeviceState* owned = DeviceState::get(device);
  ++owned->owners();
  *context = reinterpret_cast<Context>(owned);
  return Code::kSuccess;
}

Code device_primary_ctx_release(Device device) {
  if (const Code code = check_device(device); code != Code::kSuccess) return code;
  std::atomic<int>& owners = DeviceState::get(device)->owners();
  if (owners == 0) return Code::kInvalidContext;
  --owners;
  return Code::kSuccess;
}

Code ctx_get_current(Context* context) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  *context = context_stack().empty() ? nullptr : reinterpret_cast<Context>(context_stack().back());
  return Code::kSuccess;
}

Code ctx_set_current(Context context) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  if (!context_stack().empty()) context_stack().pop_back();
  if (context != nullptr) context_stack().push_back(device_of(context));
  return Code::kSuccess;
}

Code ctx_push_current(Context context) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  if (context == nullptr) return Code::kInvalidContext;
  context_stack().push_back(device_of(context));
  return Code::kSuccess;
}

Code ctx_pop_current(Context* context) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  if (context_stack().empty()) return Code::kInvalidContext;
  if (context != nullptr) *context = reinterpret_cast<Context>(context_stack().back());
  context_stack().pop_back();
  return Code::kSuccess;
}

Code ctx_get_device(Device* device) {
  const Entry entry(Entry::Lock::kLeave);
  // After a failure too: it is the thread that is asked.
  if (entry.code() == Code::kNotInitialized || entry.code() == Code::kInvalidContext) {
    return entry.code();
  }
  *device = entry.device().ordinal();
  return Code::kSuccess;
}

Code ctx_get_stream_priority_range(int* least, int* greatest) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return Code::kSuccess;
}

Code stream_create_with_priority(Stream* stream, unsigned, int priority) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  // Out of range is no error: the nearest is taken.
  auto state = StreamState::create(entry.device(), std::clamp(priority, kGreatestPriority, 0));
  *stream = reinterpret_cast<Stream>(state.get());
  entry.device().add_stream(std::move(state));
  return Code::kSuccess;
}

Code stream_get_priority(Stream stream, int* priority) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto state = entry.stream(stream);
  if (state == nullptr) return Code::kInvalidHandle;
  *priority = state->priority();
  return Code::kSuccess;
}

}  // namespace fake_cuda::calls
