#include "tests/fakes/cuda_driver/stream.h"

#include <pthread.h>

#include <utility>

#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda {

std::shared_ptr<StreamState> StreamState::create(DeviceState& device, int priority) {
  return std::shared_ptr<StreamState>(new StreamState(device, priority));
}

void StreamState::work() {
  pthread_setname_np(pthread_self(), "cuda-stream");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Operation operation = std::move(queue_.front());
    queue_.pop_front();
    running_ = true;
    changed_.notify_all();
    lock.unlock();
    operation.run(operation.turn);
    operation.run = nullptr;  // with what it keeps alive, before anybody is told that it is over
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

void StreamState::submit(std::function<void(Turn turn)> run, CopyEngine* engine) {
  const auto depth = static_cast<size_t>(Settings::get().queue_depth);
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([self = shared_from_this()] { self->work(); });
  if (queue_.size() >= depth) {
    ++StreamCounters::get().full_queues;
    changed_.wait(lock, [&] { return queue_.size() < depth; });
    --StreamCounters::get().full_queues;
  }
  // Under the lock, so that turns of one stream follow each other as its operations do.
  queue_.push_back({std::move(run), engine != nullptr ? engine->submit() : std::nullopt});
  changed_.notify_all();
}

bool StreamState::idle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !running_;
}

void StreamState::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !running_; });
}

void StreamState::close() {
  bool is_idle = false;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    is_idle = queue_.empty() && !running_;
    changed_.notify_all();
  }
  if (!thread_.joinable()) return;
  // So that a test that counts threads finds none left of a stream without work.
  is_idle ? thread_.join() : thread_.detach();
}

void Recording::finish() {
  const std::lock_guard lock(mutex_);
  time_ = std::chrono::steady_clock::now();
  finished_ = true;
  finished_changed_.notify_all();
}

void Recording::wait() {
  std::unique_lock lock(mutex_);
  finished_changed_.wait(lock, [&] { return finished_; });
}

bool Recording::finished() {
  const std::lock_guard lock(mutex_);
  return finished_;
}

void SharedRecording::wait() {
  // Nobody of another process wakes this one.
  while (!finished()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

std::shared_ptr<Recording> EventState::record() {
  if (shared_ != nullptr) return std::make_shared<SharedRecording>(shared_, shared_->record());
  const std::lock_guard lock(mutex_);
  latest_ = std::make_shared<Recording>();
  return latest_;
}

std::shared_ptr<Recording> EventState::latest() const {
  if (shared_ != nullptr) {
    const uint64_t number = shared_->latest();
    return number == 0 ? nullptr : std::make_shared<SharedRecording>(shared_, number);
  }
  const std::lock_guard lock(mutex_);
  return latest_;
}

StreamCounters& StreamCounters::get() {
  static StreamCounters* const counters = new StreamCounters();
  return *counters;
}

}  // namespace fake_cuda
