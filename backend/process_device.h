#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "backend/call.h"
#include "backend/device_order.h"
#include "backend/environment.h"
#include "backend/staging.h"
#include "backend/task_thread.h"
#include "cpp/scheduler/group.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// The CUDA device that this process moves tensors of: the first one that a call was made on.
class ProcessDevice {
 public:
  // Throws what is wrong with the device. `notify` wakes the engine.
  ProcessDevice(const CallSite& site, c10::Device device, const Environment& environment,
                std::chrono::nanoseconds aging, std::function<void()> notify);

  // Throws for a device that is another one.
  void check_same(const CallSite& site, c10::Device device) const;

  struct Begun {
    std::shared_ptr<DeviceCall> call;    // for the engine
    std::shared_ptr<DeviceOrder> order;  // for the Work
  };
  // Starts a call on the device at the point that the caller's current stream has come to. Throws.
  Begun begin(const CallSite& site, const Group& group, const Plan& plan, const Operands& operands,
              const Staging& staging);

 private:
  const c10::Device device_;
  std::unique_ptr<cuda::CudaDevice> cuda_;
  TaskThread tasks_;
};

}  // namespace freescale
