#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "cpp/base/status.h"
#include "cpp/scheduler/completion.h"
#include "cpp/transport/cuda_ipc/cuda_device.h"

namespace freescale {

// The stream on which the caller's kernels of a device go now.
c10::Stream current_stream(c10::Device device);
cuda::Stream driver_stream(const c10::Stream& stream);
// The allocator gives the tensor's memory to nobody before what `stream` has now is over.
void record_stream(const at::Tensor& tensor, const c10::Stream& stream);

// The place of a call on CUDA tensors in the order of streams: what its Work needs beside what all
// have. Thread-safe.
class DeviceOrder {
 public:
  // Runs a task on a thread that may call the device's driver, and soon.
  using Defer = std::function<void(std::function<void()>)>;

  // `submits_ahead`: see CudaDevice.
  DeviceOrder(c10::Device device, std::shared_ptr<cuda::CudaCall> call, bool submits_ahead,
              Defer defer)
      : device_(device),
        submits_ahead_(submits_ahead),
        defer_(std::move(defer)),
        call_(std::move(call)) {}

  c10::Device device() const { return device_; }
  // Whether a thread that is to order a stream has to wait for submitted() before.
  bool submits_ahead() const { return submits_ahead_; }
  Completion& submitted() { return submitted_; }

  // The caller's current stream waits from here on for the call. Once the call is over on the host
  // there is nothing to wait for.
  Status order_current_stream();

  // Runs `rest` with the caller's current stream, which has come to the end of the call; but the
  // streams of later callers only wait for what the first one's did. If it throws, the next caller
  // is the first.
  void do_rest_once(const std::function<void()>& rest);

  // The call is over on the host: its memory is let go of. `ready` is OpResult::ready, `end` now.
  void finish(Nanoseconds ready, Nanoseconds end);
  // When it was, for those who have kept this and not the Work, whose tensors are in the way.
  struct Times {
    Nanoseconds ready = 0;
    Nanoseconds end = 0;
  };
  std::optional<Times> times() const {
    return over_.load(std::memory_order_acquire) ? std::optional(times_) : std::nullopt;
  }
  // For the completion of a call, while the engine exists: runs `task` where calls of the driver
  // may be made, with a stream of its own current, on which nothing waits.
  void after_completion(std::function<void()> task) const;

 private:
  const c10::Device device_;
  const bool submits_ahead_;
  const Defer defer_;
  Completion submitted_;
  std::once_flag rest_done_;
  std::optional<c10::Event> rest_;  // recorded once that is set
  Times times_;                     // written before over_ is set
  std::atomic<bool> over_{false};
  std::mutex mutex_;  // guards call_
  std::shared_ptr<cuda::CudaCall> call_;
};

}  // namespace freescale
