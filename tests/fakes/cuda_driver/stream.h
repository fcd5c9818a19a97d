#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/fakes/cuda_driver/device.h"
#include "tests/fakes/cuda_driver/shared_event.h"

namespace fake_cuda {

// A stream: operations one after the other, on a thread of its own, which starts with the first: a
// program of torch has a hundred streams and uses three. Thread-safe.
class StreamState : public std::enable_shared_from_this<StreamState> {
 public:
  static std::shared_ptr<StreamState> create(DeviceState& device, int priority);

  DeviceState& device() const { return device_; }
  int priority() const { return priority_; }
  std::atomic<bool>& capturing() { return capturing_; }

  // Blocks while the queue is full. `run` gets its turn at `engine`, if there is one. Once the
  // device has failed it is still called, and must do nothing but give its turn back.
  void submit(std::function<void(Turn turn)> run, CopyEngine* engine = nullptr);
  bool idle();
  void synchronize();
  // What was submitted still happens; then the thread ends. Returns at once unless the stream is
  // idle.
  void close();

 private:
  struct Operation {
    std::function<void(Turn turn)> run;
    Turn turn;
  };

  StreamState(DeviceState& device, int priority) : device_(device), priority_(priority) {}
  void work();

  DeviceState& device_;
  const int priority_;
  std::atomic<bool> capturing_ = false;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Operation> queue_;
  bool running_ = false;
  bool closed_ = false;
};

// What an event recorded last: done once the stream got there.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual void finish();
  virtual void wait();
  virtual bool finished();
  // When it finished; only for one that has.
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::mutex mutex_;
  std::condition_variable finished_changed_;
  bool finished_ = false;
  std::chrono::steady_clock::time_point time_;
};

// A recording of an event that several processes know.
class SharedRecording : public Recording {
 public:
  SharedRecording(std::shared_ptr<SharedEvent> event, uint64_t number)
      : event_(std::move(event)), number_(number) {}
  void finish() override { event_->finish(number_); }
  void wait() override;
  bool finished() override { return event_->finished(number_); }

 private:
  const std::shared_ptr<SharedEvent> event_;
  const uint64_t number_;
};

class EventState {
 public:
  explicit EventState(bool timed) : timed_(timed) {}
  explicit EventState(std::shared_ptr<SharedEvent> shared)
      : timed_(false), shared_(std::move(shared)) {}

  bool timed() const { return timed_; }
  // Null for one of this process alone.
  const SharedEvent* shared() const { return shared_.get(); }
  std::shared_ptr<Recording> record();
  // Null before the first.
  std::shared_ptr<Recording> latest() const;

 private:
  const bool timed_;
  const std::shared_ptr<SharedEvent> shared_;
  mutable std::mutex mutex_;
  std::shared_ptr<Recording> latest_;  // of one of this process alone
};

// For fake_cuda_state.
struct StreamCounters {
  std::atomic<int> draining_launches = 0;
  std::atomic<int> full_queues = 0;
  std::atomic<int> polling_waits = 0;
  std::atomic<uint64_t> copies_done = 0;
  std::atomic<bool> hung_released = false;
  static StreamCounters& get();
};

}  // namespace fake_cuda
