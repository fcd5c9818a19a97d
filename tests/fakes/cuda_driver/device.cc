#include "tests/fakes/cuda_driver/device.h"

#include <algorithm>
#include <utility>

#include "tests/fakes/cuda_driver/settings.h"
#include "tests/fakes/cuda_driver/stream.h"

namespace fake_cuda {

Turn CopyEngine::submit() {
  if (Settings::get().engine_order == EngineOrder::kReadiness) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return next_++;
}

void CopyEngine::run(Turn turn, const std::function<void()>& copy) {
  std::unique_lock lock(mutex_);
  const uint64_t mine = turn.has_value() ? *turn : next_++;
  if (serving_ != mine) {
    ++blocked_;
    served_.wait(lock, [&] { return serving_ == mine; });
    --blocked_;
  }
  lock.unlock();
  copy();
  lock.lock();
  ++serving_;
  served_.notify_all();
}

void Multiprocessors::occupy() {
  const std::lock_guard lock(mutex_);
  ++kernels_;
}

void Multiprocessors::leave() {
  const std::lock_guard lock(mutex_);
  --kernels_;
  left_.notify_all();
}

void Multiprocessors::wait_free() {
  std::unique_lock lock(mutex_);
  ++waiters_;
  left_.wait(lock, [&] { return kernels_ == 0; });
  --waiters_;
}

void ContextLock::lock() {
  if (mutex_.try_lock()) return;
  ++waiters_;
  mutex_.lock();
  --waiters_;
}

DeviceState::DeviceState(int ordinal) : ordinal_(ordinal) {
  const int engines = std::max(Settings::get().engines, 1);
  for (int i = 0; i < engines; ++i) engines_.push_back(std::make_unique<CopyEngine>());
}

DeviceState* DeviceState::get(int ordinal) {
  static const auto* const devices = [] {
    auto* made = new std::vector<DeviceState*>();
    for (int i = 0; i < Settings::get().devices; ++i) made->push_back(new DeviceState(i));
    return made;
  }();
  const bool exists = ordinal >= 0 && ordinal < static_cast<int>(devices->size());
  return exists ? (*devices)[static_cast<size_t>(ordinal)] : nullptr;
}

CopyEngine& DeviceState::engine(Direction direction) {
  return *engines_[static_cast<size_t>(direction) % engines_.size()];
}

void DeviceState::add_stream(std::shared_ptr<StreamState> stream) {
  const std::lock_guard lock(streams_mutex_);
  streams_.insert(std::move(stream));
}

std::shared_ptr<StreamState> DeviceState::find_stream(const void* handle) {
  const std::lock_guard lock(streams_mutex_);
  const auto found = std::find_if(streams_.begin(), streams_.end(),
                                  [&](const auto& stream) { return stream.get() == handle; });
  return found == streams_.end() ? nullptr : *found;
}

std::shared_ptr<StreamState> DeviceState::remove_stream(const void* handle) {
  std::shared_ptr<StreamState> stream = find_stream(handle);
  const std::lock_guard lock(streams_mutex_);
  streams_.erase(stream);
  return stream;
}

std::shared_ptr<StreamState> DeviceState::default_stream() {
  const std::lock_guard lock(streams_mutex_);
  if (default_stream_ == nullptr) {
    default_stream_ = StreamState::create(*this, 0);
    streams_.insert(default_stream_);
  }
  return default_stream_;
}

void DeviceState::drain() {
  std::set<std::shared_ptr<StreamState>> streams;
  {
    const std::lock_guard lock(streams_mutex_);
    streams = streams_;
  }
  for (const auto& stream : streams) stream->synchronize();
}

int DeviceState::streams() {
  const std::lock_guard lock(streams_mutex_);
  return static_cast<int>(streams_.size());
}

int DeviceState::blocked_copies() const {
  int blocked = 0;
  for (const auto& engine : engines_) blocked += engine->blocked();
  return blocked;
}

namespace {

struct LoadedKernels {
  std::mutex mutex;
  std::set<std::string> names;
  static LoadedKernels& get() {
    static LoadedKernels* const kernels = new LoadedKernels();
    return *kernels;
  }
};

}  // namespace

bool is_loaded(const std::string& kernel) {
  LoadedKernels& kernels = LoadedKernels::get();
  const std::lock_guard lock(kernels.mutex);
  return kernels.names.contains(kernel);
}

void set_loaded(const std::string& kernel) {
  LoadedKernels& kernels = LoadedKernels::get();
  const std::lock_guard lock(kernels.mutex);
  kernels.names.insert(kernel);
}

}  // namespace fake_cuda
