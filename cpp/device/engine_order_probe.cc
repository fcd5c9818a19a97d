#include "cpp/device/engine_order_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/base/service_thread.h"
#include "cpp/device/driver_stream.h"
#include "cpp/device/pinned_words.h"

namespace freescale::cuda {
namespace {

// More than a driver passes along within its commands, so that an engine is needed.
constexpr size_t kBytes = 128 << 10;

// A thread that sleeps for ever is one whose clock would overflow.
constexpr auto kLongSleep = std::chrono::hours(1);

Status too_late() {
  return Status::timed_out("the order of the copy engines is not known: the device was too busy");
}

// Memory of the device and pinned memory of the host, freed with the object. Needs the context
// current all its life.
class Memory {
 public:
  explicit Memory(const Driver& driver) : driver_(driver) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    // Both fail only with a context that is lost, and its memory with it.
    if (device_ != 0) driver_.mem_free.code(device_);
    if (host_ != nullptr) driver_.mem_free_host.code(host_);
  }
  Status allocate(size_t device_bytes, size_t host_bytes) {
    if (Status status = driver_.mem_alloc(&device_, device_bytes); !status.ok()) return status;
    if (Status status = driver_.mem_host_alloc(&host_, host_bytes, kHostPortable | kHostDeviceMap);
        !status.ok()) {
      return status;
    }
    return driver_.mem_host_get_device_pointer(&host_on_device_, host_, 0);
  }

  DevicePtr device(size_t offset) const { return device_ + offset; }
  DevicePtr host(size_t offset) const { return reinterpret_cast<DevicePtr>(host_) + offset; }
  // Word `index` of the host's memory, 0 at first.
  PinnedWord word(size_t index) const {
    auto* const words = static_cast<std::atomic<uint32_t>*>(host_);
    return {new (&words[index]) std::atomic<uint32_t>(0),
            host_on_device_ + index * sizeof(uint32_t)};
  }

 private:
  const Driver& driver_;
  DevicePtr device_ = 0;
  void* host_ = nullptr;
  DevicePtr host_on_device_ = 0;
};

// A stream and memory for copies of each kind, that nobody else uses.
class Lane {
 public:
  static constexpr size_t kDeviceBytes = 4 * kBytes;
  static constexpr size_t kHostBytes = 2 * kBytes;

  Lane(DriverStream stream, PinnedWord arrived, DevicePtr device, DevicePtr host)
      : stream_(std::move(stream)), arrived_(arrived), device_(device), host_(host) {}

  Status wait(WordValue until) const { return stream_.wait(until); }
  // Copies of all kinds, and then the write of `round`.
  Status copy(uint32_t round) const {
    const CopyPiece to_host{host_, device_, kBytes};
    const CopyPiece to_device{device_ + kBytes, host_ + kBytes, kBytes};
    const CopyPiece within{device_ + 2 * kBytes, device_ + 3 * kBytes, kBytes};
    for (const CopyPiece* piece : {&to_host, &to_device, &within}) {
      if (Status status = stream_.copy({piece, 1}, piece == &within); !status.ok()) return status;
    }
    const WordValue arrived{arrived_, round};
    return stream_.write({&arrived, 1});
  }
  bool has_arrived(uint32_t round) const { return WordValue{arrived_, round}.reached(); }
  Status synchronize() const { return stream_.synchronize(); }

 private:
  DriverStream stream_;
  PinnedWord arrived_;
  DevicePtr device_, host_;
};

// Sets a word at a time, or at the end of its life if that comes first.
class TimedRelease {
 public:
  TimedRelease(PinnedWord word, uint32_t value, Deadline deadline)
      : thread_(start_service_thread("fs_probe", [this, word, value, deadline] {
          std::unique_lock lock(mutex_);
          while (!ended_ && !deadline.passed(now_ns())) {
            changed_.wait_for(lock,
                              std::min<std::chrono::nanoseconds>(deadline.left(), kLongSleep));
          }
          word.host->store(value, std::memory_order_release);
        })) {}
  TimedRelease(const TimedRelease&) = delete;
  TimedRelease& operator=(const TimedRelease&) = delete;
  ~TimedRelease() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;  // last: it uses the others
};

// The streams of the probe. Needs the context current all its life.
class Probe {
 public:
  explicit Probe(const PrimaryContext& context) : context_(context), memory_(context.driver()) {}
  // Waits for what was enqueued, as memory is freed then.
  ~Probe() {
    // An error means that the context is lost, and that nothing moves any more.
    for (const Lane& lane : lanes_) static_cast<void>(lane.synchronize());
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Status prepare(size_t streams);
  // Copies on all streams while none waits: everything that the driver loads when it is first used
  // would otherwise wait for the stream that waits.
  Status warm_up();
  // The first stream waits, the others must not.
  Result<bool> run(Deadline deadline);

 private:
  bool all_arrived() const;

  const PrimaryContext& context_;
  Memory memory_;
  PinnedWord go_;
  std::vector<Lane> lanes_;
};

Status Probe::prepare(size_t streams) {
  const size_t lanes = streams + 1;
  const size_t words = (lanes + 1) * sizeof(uint32_t);
  const size_t word_bytes = (words + kBytes - 1) / kBytes * kBytes;
  if (Status status =
          memory_.allocate(lanes * Lane::kDeviceBytes, word_bytes + lanes * Lane::kHostBytes);
      !status.ok()) {
    return status;
  }
  go_ = memory_.word(0);
  for (size_t i = 0; i < lanes; ++i) {
    Result<DriverStream> stream = DriverStream::create(context_);
    if (!stream.ok()) return stream.status();
    lanes_.emplace_back(std::move(stream.value()), memory_.word(i + 1),
                        memory_.device(i * Lane::kDeviceBytes),
                        memory_.host(word_bytes + i * Lane::kHostBytes));
  }
  return {};
}

Status Probe::warm_up() {
  for (const Lane& lane : lanes_) {
    if (Status status = lane.wait({go_, 0}); !status.ok()) return status;
    if (Status status = lane.copy(1); !status.ok()) return status;
  }
  for (const Lane& lane : lanes_) {
    if (Status status = lane.synchronize(); !status.ok()) return status;
  }
  return {};
}

bool Probe::all_arrived() const {
  for (size_t i = 1; i < lanes_.size(); ++i) {
    if (!lanes_[i].has_arrived(2)) return false;
  }
  return true;
}

Result<bool> Probe::run(Deadline deadline) {
  const TimedRelease release(go_, 1, deadline);
  if (Status status = lanes_[0].wait({go_, 1}); !status.ok()) return status;
  for (const Lane& lane : lanes_) {
    if (Status status = lane.copy(2); !status.ok()) return status;
  }
  if (deadline.passed(now_ns())) return too_late();
  while (true) {
    const bool arrived = all_arrived();
    // In this order: what has arrived counts if the wait was not over yet.
    if (deadline.passed(now_ns())) return true;
    if (arrived) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace

Result<bool> blocks_at_head(const PrimaryContext& context, Deadline deadline, int streams) {
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  Probe probe(context);
  if (Status status = probe.prepare(static_cast<size_t>(streams)); !status.ok()) return status;
  if (Status status = probe.warm_up(); !status.ok()) return status;
  if (deadline.passed(now_ns())) return too_late();
  return probe.run(deadline);
}

}  // namespace freescale::cuda
