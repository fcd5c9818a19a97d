#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/device/copy_pacer.h"
#include "cpp/transport/cuda_ipc/cuda_call.h"
#include "cpp/transport/cuda_ipc/device_lane.h"
#include "cpp/transport/cuda_ipc/driver_thread.h"
#include "cpp/transport/cuda_ipc/host_buffers.h"
#include "cpp/transport/cuda_ipc/submission_mode.h"

namespace freescale::cuda {

struct CudaDeviceOptions {
  SubmissionMode submission = SubmissionMode::kAutomatic;
  size_t chunk_bytes = 4 << 20;
  // As EngineOptions::aging.
  std::chrono::nanoseconds aging = std::chrono::milliseconds(100);
  // Called by the device's thread when a transfer has changed; must not block.
  std::function<void()> notify;
};

// A device as this process uses it: its lanes to peers, and the thread that calls its driver.
class CudaDevice {
 public:
  // Creates the device's context if the process has none.
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal, CudaDeviceOptions options);
  // Nobody uses its calls any more. Copies that do not come to an end in a second keep their
  // streams and mappings for ever.
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const { return ordinal_; }
  // Whether copies are submitted ahead: then who is to make streams wait for a call has to wait
  // himself until it was submitted everywhere, so that no call of his that takes the driver's lock
  // meanwhile can hold up a copy that it waits for.
  bool submits_ahead() const { return submits_ahead_; }

  // Starts a call at the point that `stream` has come to: there its memory may be read and written.
  // Calls the driver. A stream that is being captured is refused.
  Result<std::shared_ptr<CudaCall>> begin(Stream stream, CallMemory memory);

  // The rest is for calls and their transfers.

  const std::shared_ptr<const PrimaryContext>& context() const { return context_; }
  FlagSegment& flags() { return flags_; }
  Result<std::vector<ExportedPiece>> export_range(DevicePtr address, size_t bytes) {
    return exported_->export_range(address, bytes);
  }
  // The way to a peer, made on first use; to the device itself for null.
  DeviceLane& lane(const std::shared_ptr<Link>& link);
  // A lane between the device and the host's memory, for one call at a time and one way: what waits
  // in it holds up nobody else's copies. It goes back to host_lanes().
  DeviceLane& borrow_host_lane();
  const std::shared_ptr<LanePool>& host_lanes() const { return host_lanes_; }
  HostBuffers& host_buffers() { return *host_buffers_; }
  void submit(DeviceLane& lane, int level, Way way, std::shared_ptr<Submission> submission);
  void close(DeviceLane& lane, std::shared_ptr<Submission> submission);
  // As DeviceCall::pace().
  void pace(Nanoseconds now);
  // A transfer has changed.
  void notify() const {
    if (options_.notify) options_.notify();
  }
  // What a queue of copies said. After a refusal of the driver the device is lost: what its streams
  // do is not known any more. On the driver's thread.
  void heed(const Status& of_queue);
  // Not ok once the device is lost: a copy was refused, or failed, and with it the context.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  const Status& failure() const { return failure_; }

 private:
  CudaDevice(int ordinal, CudaDeviceOptions options, std::shared_ptr<const PrimaryContext> context,
             FlagSegment& flags, const AccessTarget& target, const Uuid& uuid, bool submits_ahead);
  Result<std::unique_ptr<CopyQueue>> make_queue(int level);
  std::unique_ptr<DeviceLane> make_lane(const std::shared_ptr<Link>& link);
  std::chrono::nanoseconds work();
  void lose(const Status& why);
  void count_round_since_failure();
  std::vector<DeviceLane*> all_lanes();
  void tell_gone();
  bool settle();

  const int ordinal_;
  const CudaDeviceOptions options_;
  std::shared_ptr<const PrimaryContext> context_;  // calls keep it too
  FlagSegment& flags_;
  const AccessTarget& access_target_;
  const Uuid uuid_;
  const bool submits_ahead_;
  std::unique_ptr<ExportedMemory> exported_;
  const std::shared_ptr<HostBuffers> host_buffers_;
  const std::shared_ptr<LanePool> host_lanes_ = std::make_shared<LanePool>();
  CopyPacer pacer_;
  Nanoseconds paced_ = 0;         // at; the engine's
  int rounds_since_failure_ = 0;  // the engine's

  std::atomic<bool> failed_{false};
  Status failure_;  // written before failed_

  std::mutex mutex_;  // guards the three below
  std::map<const Link*, std::unique_ptr<DeviceLane>> lanes_;
  std::vector<std::unique_ptr<DeviceLane>> all_host_lanes_;
  std::vector<FlagWord> queue_words_;

  std::unique_ptr<DriverThread> thread_;
};

}  // namespace freescale::cuda
