#include "backend/device_order.h"

#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace freescale {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

cuda::Stream driver_stream(const c10::Stream& stream) {
  return static_cast<cuda::Stream>(stream.native_handle());
}

void record_stream(const at::Tensor& tensor, const c10::Stream& stream) {
  c10::impl::VirtualGuardImpl(stream.device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

Status DeviceOrder::order_current_stream() {
  std::shared_ptr<cuda::CudaCall> call;
  {
    const std::lock_guard lock(mutex_);
    call = call_;
  }
  // Not under the lock: the driver's may be held for long, and finish() must not wait for it.
  if (call == nullptr) return {};
  return call->wait_on(driver_stream(current_stream(device_)));
}

void DeviceOrder::do_rest_once(const std::function<void()>& rest) {
  bool first = false;
  std::call_once(rest_done_, [&] {
    rest();
    c10::Event event(device_.type());
    event.record(current_stream(device_));
    rest_ = std::move(event);
    first = true;
  });
  if (!first) rest_->block(current_stream(device_));
}

void DeviceOrder::finish(Nanoseconds ready, Nanoseconds end) {
  times_ = {ready, end};
  over_.store(true, std::memory_order_release);
  std::shared_ptr<cuda::CudaCall> call;
  {
    const std::lock_guard lock(mutex_);
    call = std::move(call_);
  }
  submitted_.set();
}

void DeviceOrder::after_completion(std::function<void()> task) const {
  defer_([device = device_, task = std::move(task)] {
    const c10::impl::VirtualGuardImpl guard(device.type());
    const c10::StreamGuard aside(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true));
    task();
  });
}

}  // namespace freescale
