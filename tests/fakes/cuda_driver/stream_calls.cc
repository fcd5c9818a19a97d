#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/cuda_driver/calls.h"
#include "tests/fakes/cuda_driver/entry.h"
#include "tests/fakes/cuda_driver/faults.h"
#include "tests/fakes/cuda_driver/memory.h"
#include "tests/fakes/cuda_driver/runtime_calls.h"
#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda::calls {
namespace {

EventState* event_of(Event event) { return reinterpret_cast<EventState*>(event); }

// --- Copies ------------------------------------------------------------------------------------

// What lies in one piece at both ends: mappings are side by side for the device alone.
struct CopyPart {
  Place to;
  Place from;
  size_t bytes = 0;
};

// A copy that was accepted; made when it is submitted, run by its stream.
struct Copy {
  std::vector<CopyPart> parts;
  Direction direction = Direction::kLocal;
  bool needs_sm = false;
  int slow_ms = 0;

  // Host memory the driver does not know: a copy of it is over when its call returns.
  bool pageable() const { return parts[0].to.region == nullptr || parts[0].from.region == nullptr; }
};

// False if the device has no access to all of it.
bool resolve_parts(DevicePtr to, DevicePtr from, size_t bytes, int device,
                   std::vector<CopyPart>* parts) {
  AddressSpace& space = AddressSpace::get();
  size_t done = 0;
  do {
    const size_t left = space.bytes_on_mapping(to + done, bytes - done);
    const size_t here = space.bytes_on_mapping(from + done, left);
    std::optional<Place> destination = space.resolve(to + done, here, device);
    std::optional<Place> source = space.resolve(from + done, here, device);
    if (!destination.has_value() || !source.has_value()) return false;
    parts->push_back({std::move(*destination), std::move(*source), here});
    // Behind a mapping there may be nothing.
    const CopyPart& part = parts->back();
    const bool same = (part.to.region == nullptr) == (parts->front().to.region == nullptr) &&
                      (part.from.region == nullptr) == (parts->front().from.region == nullptr);
    if (!same) return false;
    done += here;
  } while (done < bytes);
  return true;
}

Direction direction_of(const Place& to, const Place& from) {
  if (from.is_host()) return Direction::kToDevice;
  if (to.is_host()) return Direction::kToHost;
  return to.device() == from.device() ? Direction::kLocal : Direction::kPeer;
}

// Copies within a device are done by its SMs. Only 13.1 and later use an engine when asked to.
bool needs_sm(Direction direction, bool prefer_overlap) {
  return direction == Direction::kLocal && !(prefer_overlap && Settings::get().version >= 13010);
}

Code prepare(const Entry& entry, DevicePtr to, DevicePtr from, size_t bytes, bool prefer_overlap,
             Copy* copy) {
  if (const auto code = occurs(Fault::kCopyRefused)) return static_cast<Code>(*code);
  const int device = entry.device().ordinal();
  if (!resolve_parts(to, from, bytes, device, &copy->parts)) return Code::kInvalidValue;
  copy->direction = direction_of(copy->parts[0].to, copy->parts[0].from);
  copy->needs_sm = needs_sm(copy->direction, prefer_overlap);
  copy->slow_ms = occurs(Fault::kCopySlow).value_or(0);
  return Code::kSuccess;
}

void move_bytes(DeviceState& device, const Copy& copy) {
  if (device.failed()) return;
  if (copy.slow_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(copy.slow_ms));
  if (const auto code = occurs(Fault::kCopyFails)) {
    device.fail(static_cast<Code>(*code));
    return;
  }
  const bool garbled = occurs(Fault::kCopyGarbled).has_value();
  for (const CopyPart& part : copy.parts) {
    std::memcpy(part.to.data, part.from.data, part.bytes);
    if (garbled) std::memset(part.to.data, 0x5a, part.bytes);
  }
  ++StreamCounters::get().copies_done;
}

void submit(StreamState& stream, Copy copy) {
  DeviceState& device = stream.device();
  CopyEngine& engine = device.engine(copy.direction);
  stream.submit(
      [&device, &engine, copy = std::move(copy)](Turn turn) {
        if (copy.needs_sm) device.multiprocessors().wait_free();
        engine.run(turn, [&] { move_bytes(device, copy); });
      },
      &engine);
}

// Which attributes each copy has; kInvalidValue unless they are as cuMemcpyBatchAsync wants them.
Code check_attributes(size_t count, const CopyAttributes* attributes, const size_t* starts,
                      size_t attribute_count) {
  if (attribute_count == 0 || attribute_count > count || starts[0] != 0) {
    return Code::kInvalidValue;
  }
  for (size_t k = 0; k < attribute_count; ++k) {
    const bool in_order = starts[k] < count && (k == 0 || starts[k] > starts[k - 1]);
    const int order = static_cast<int>(attributes[k].source_access_order);
    if (!in_order || order < 1 || order > 3) return Code::kInvalidValue;
  }
  return Code::kSuccess;
}

Code copy_batch(const Entry& entry, DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                CopyAttributes* attributes, size_t* starts, size_t attribute_count,
                size_t* fail_index, Stream handle) {
  *fail_index = SIZE_MAX;  // no single copy is at fault
  if (reinterpret_cast<uintptr_t>(handle) <= 1) return Code::kInvalidValue;
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  if (stream->capturing()) return Code::kStreamCaptureUnsupported;
  const Code sensible = check_attributes(count, attributes, starts, attribute_count);
  if (sensible != Code::kSuccess) return sensible;

  std::vector<Copy> copies(count);
  for (size_t i = 0, k = 0; i < count; ++i) {
    if (k + 1 < attribute_count && starts[k + 1] == i) ++k;
    const bool prefer_overlap = (attributes[k].flags & kCopyPreferOverlapWithCompute) != 0;
    const Code code = prepare(entry, to[i], from[i], bytes[i], prefer_overlap, &copies[i]);
    if (code == Code::kSuccess) continue;
    *fail_index = i;
    return code;
  }
  // A batch has no order within: last to first, so that who relies on one finds out.
  while (!copies.empty()) {
    const bool pageable = copies.back().pageable();
    submit(*stream, std::move(copies.back()));
    if (pageable) stream->synchronize();
    copies.pop_back();
  }
  return Code::kSuccess;
}

// --- Operations on words -----------------------------------------------------------------------

// A word that the stream waits for or writes.
struct WordOperation {
  MemoryOperationKind kind;
  Place place;
  uint32_t value = 0;
  bool hung = false;
};

Code prepare(const Entry& entry, const MemoryOperation& operation, WordOperation* prepared) {
  const bool known = operation.kind == MemoryOperationKind::kWaitValue32 ||
                     operation.kind == MemoryOperationKind::kWriteValue32;
  // Of the comparisons, only this one is in use.
  if (!known || operation.flags != 0 || operation.address % sizeof(uint32_t) != 0) {
    return Code::kInvalidValue;
  }
  const auto region = AddressSpace::get().find(operation.address);
  auto place =
      AddressSpace::get().resolve(operation.address, sizeof(uint32_t), entry.device().ordinal());
  // The address has to be one of the device's; the host's for registered memory is not.
  if (region == nullptr || !place.has_value()) return Code::kInvalidValue;
  // Memory of another process's device, or of another device: not since 13.1 (NVIDIA/nccl#2052).
  if (!place->is_host() &&
      (place->region->physical->foreign || place->device() != entry.device().ordinal())) {
    return Code::kNotSupported;
  }
  *prepared = {operation.kind, std::move(*place), operation.value, false};
  if (operation.kind == MemoryOperationKind::kWaitValue32) {
    prepared->hung = occurs(Fault::kWaitHung).has_value();
  }
  return Code::kSuccess;
}

bool satisfied(const WordOperation& wait) {
  if (wait.hung && !StreamCounters::get().hung_released) return false;
  const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(wait.place.data));
  return static_cast<int32_t>(word.load(std::memory_order_acquire) - wait.value) >= 0;
}

// Nobody wakes a stream for a word that any process may write, so it looks again and again.
void wait_for(DeviceState& device, const WordOperation& wait) {
  if (satisfied(wait)) return;
  ++StreamCounters::get().polling_waits;
  for (auto pause = std::chrono::microseconds(5); !device.failed() && !satisfied(wait);) {
    std::this_thread::sleep_for(pause);
    if (pause < std::chrono::microseconds(200)) pause *= 2;
  }
  --StreamCounters::get().polling_waits;
}

void run(DeviceState& device, const WordOperation& operation) {
  if (operation.kind == MemoryOperationKind::kWaitValue32) return wait_for(device, operation);
  if (device.failed() || occurs(Fault::kWriteLost).has_value()) return;
  const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(operation.place.data));
  word.store(operation.value, std::memory_order_release);
}

}  // namespace

Code stream_destroy(Stream handle) {
  const Entry entry;
  // A stream can be destroyed after a failure as well.
  if (entry.code() == Code::kNotInitialized || entry.code() == Code::kInvalidContext) {
    return entry.code();
  }
  const auto stream = entry.device().remove_stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  stream->close();
  return Code::kSuccess;
}

Code stream_query(Stream handle) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  return stream->idle() ? entry.device().error() : Code::kNotReady;
}

Code stream_synchronize(Stream handle) {
  const Entry entry(Entry::Lock::kLeave);
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  stream->synchronize();
  return entry.device().error();
}

Code stream_is_capturing(Stream handle, CaptureStatus* status) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  *status = stream->capturing() ? CaptureStatus::kActive : CaptureStatus::kNone;
  return Code::kSuccess;
}

Code stream_wait_event(Stream handle, Event event, unsigned flags) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr || event == nullptr) return Code::kInvalidHandle;
  if (flags != 0) return Code::kInvalidValue;
  if (auto recording = event_of(event)->latest()) {
    stream->submit([recording = std::move(recording)](Turn) { recording->wait(); });
  }
  return Code::kSuccess;
}

Code event_create(Event* event, unsigned flags) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const bool timed = (flags & kEventDisableTiming) == 0;
  if ((flags & kEventInterprocess) == 0) {
    *event = reinterpret_cast<Event>(new EventState(timed));
    return Code::kSuccess;
  }
  if (timed) return Code::kInvalidValue;
  std::shared_ptr<SharedEvent> shared = SharedEvent::create();
  if (shared == nullptr) return Code::kOutOfMemory;
  *event = reinterpret_cast<Event>(new EventState(std::move(shared)));
  return Code::kSuccess;
}

Code event_destroy(Event event) {
  if (const Code code = initialized(); code != Code::kSuccess) return code;
  if (event == nullptr) return Code::kInvalidHandle;
  delete event_of(event);  // streams that wait keep what was recorded
  return Code::kSuccess;
}

Code event_record(Event event, Stream handle) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr || event == nullptr) return Code::kInvalidHandle;
  stream->submit([recording = event_of(event)->record()](Turn) { recording->finish(); });
  return Code::kSuccess;
}

Code event_query(Event event) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  if (event == nullptr) return Code::kInvalidHandle;
  const auto recording = event_of(event)->latest();
  return recording == nullptr || recording->finished() ? Code::kSuccess : Code::kNotReady;
}

Code event_synchronize(Event event) {
  const Entry entry(Entry::Lock::kLeave);
  if (entry.code() != Code::kSuccess) return entry.code();
  if (event == nullptr) return Code::kInvalidHandle;
  if (const auto recording = event_of(event)->latest()) recording->wait();
  return entry.device().error();
}

Code memcpy_async(DevicePtr to, DevicePtr from, size_t bytes, Stream handle) {
  Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  Copy copy;
  const Code code = prepare(entry, to, from, bytes, false, &copy);
  if (code != Code::kSuccess) return code;
  const bool pageable = copy.pageable();
  submit(*stream, std::move(copy));
  if (!pageable) return code;
  entry.unlock();
  stream->synchronize();
  return entry.device().error();
}

Code memcpy_batch_async(DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                        CopyAttributes* attributes, size_t* starts, size_t attribute_count,
                        Stream stream) {
  size_t fail_index = 0;
  return memcpy_batch_async_with_fail_index(to, from, bytes, count, attributes, starts,
                                            attribute_count, &fail_index, stream);
}

Code memcpy_batch_async_with_fail_index(DevicePtr* to, DevicePtr* from, size_t* bytes, size_t count,
                                        CopyAttributes* attributes, size_t* starts,
                                        size_t attribute_count, size_t* fail_index, Stream stream) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  return copy_batch(entry, to, from, bytes, count, attributes, starts, attribute_count, fail_index,
                    stream);
}

Code stream_wait_value32(Stream stream, DevicePtr address, uint32_t value, unsigned flags) {
  MemoryOperation operation{MemoryOperationKind::kWaitValue32, address, value, 0, flags, 0, 0};
  return stream_batch_mem_op(stream, 1, &operation, 0);
}

Code stream_write_value32(Stream stream, DevicePtr address, uint32_t value, unsigned flags) {
  MemoryOperation operation{MemoryOperationKind::kWriteValue32, address, value, 0, flags, 0, 0};
  return stream_batch_mem_op(stream, 1, &operation, 0);
}

Code stream_batch_mem_op(Stream handle, unsigned count, MemoryOperation* operations,
                         unsigned flags) {
  const Entry entry;
  if (entry.code() != Code::kSuccess) return entry.code();
  const auto stream = entry.stream(handle);
  if (stream == nullptr) return Code::kInvalidHandle;
  if (count == 0 || count >= kMemoryOperationLimit || flags != 0) return Code::kInvalidValue;
  std::vector<WordOperation> prepared(count);
  for (unsigned i = 0; i < count; ++i) {
    const Code code = prepare(entry, operations[i], &prepared[i]);
    if (code != Code::kSuccess) return code;
  }
  stream->submit([&device = entry.device(), prepared = std::move(prepared)](Turn) {
    for (const WordOperation& operation : prepared) run(device, operation);
  });
  return Code::kSuccess;
}

}  // namespace fake_cuda::calls
