#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cpp/device/cuda_types.h"

namespace fake_cuda {

using freescale::cuda::Code;

class StreamState;

// The place of a copy in its engine's queue; none until the copy is ready, if that decides.
using Turn = std::optional<uint64_t>;

// One copy engine: a copy at a time, in the order of their turns. Engines belong to the process
// here; those of a real device serve all processes in slices of time.
class CopyEngine {
 public:
  // The turn of a copy that is being submitted.
  Turn submit();
  // Runs a copy that is ready, when it is its turn. Every turn that was given must come here.
  void run(Turn turn, const std::function<void()>& copy);
  int blocked() const { return blocked_; }

 private:
  std::mutex mutex_;
  std::condition_variable served_;
  uint64_t next_ = 0;
  uint64_t serving_ = 0;
  std::atomic<int> blocked_ = 0;
};

// The SMs of a device, all of which a kernel of the stand-in fills.
class Multiprocessors {
 public:
  void occupy();
  void leave();
  // Blocks while a kernel fills them.
  void wait_free();
  int waiters() const { return waiters_; }
  int kernels() const { return kernels_; }

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  std::atomic<int> kernels_ = 0;
  std::atomic<int> waiters_ = 0;
};

// The lock that nearly every call takes in its context.
class ContextLock {
 public:
  void lock();
  void unlock() { mutex_.unlock(); }
  int waiters() const { return waiters_; }

 private:
  std::mutex mutex_;
  std::atomic<int> waiters_ = 0;
};

enum class Direction { kToDevice, kToHost, kPeer, kLocal };

// A device and its primary context.
class DeviceState {
 public:
  // Null if there is no such device.
  static DeviceState* get(int ordinal);

  int ordinal() const { return ordinal_; }
  CopyEngine& engine(Direction direction);
  Multiprocessors& multiprocessors() { return multiprocessors_; }
  ContextLock& lock() { return lock_; }

  // Nothing of the context works any more: calls return the code, what streams still have to do is
  // dropped, and waits end.
  void fail(Code code) { error_ = code; }
  Code error() const { return error_; }
  bool failed() const { return error_ != Code::kSuccess; }

  std::atomic<int>& owners() { return owners_; }

  void add_stream(std::shared_ptr<StreamState> stream);
  // The stream itself; null if the device has no such stream (any more).
  std::shared_ptr<StreamState> find_stream(const void* handle);
  std::shared_ptr<StreamState> remove_stream(const void* handle);
  std::shared_ptr<StreamState> default_stream();
  // Blocks until every stream is idle.
  void drain();
  int streams();

  int blocked_copies() const;

 private:
  explicit DeviceState(int ordinal);

  const int ordinal_;
  std::vector<std::unique_ptr<CopyEngine>> engines_;
  Multiprocessors multiprocessors_;
  ContextLock lock_;
  std::atomic<Code> error_ = Code::kSuccess;
  std::atomic<int> owners_ = 0;

  std::mutex streams_mutex_;
  std::set<std::shared_ptr<StreamState>> streams_;
  std::shared_ptr<StreamState> default_stream_;
};

// Names of kernels that were launched before. Thread-safe.
bool is_loaded(const std::string& kernel);
void set_loaded(const std::string& kernel);

}  // namespace fake_cuda
