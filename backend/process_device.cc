#include "backend/process_device.h"

#include <utility>

#include <c10/util/Exception.h>

namespace freescale {
namespace {

std::unique_ptr<cuda::CudaDevice> open_device(const CallSite& site, c10::Device device,
                                              const Environment& environment,
                                              std::chrono::nanoseconds aging,
                                              std::function<void()> notify) {
  cuda::CudaDeviceOptions options;
  options.submission = environment.cuda_submission;
  options.aging = aging;
  options.notify = std::move(notify);
  auto opened = cuda::CudaDevice::open(device.index(), std::move(options));
  if (!opened.ok()) {
    throw_status(Status::system(c10::str(site, device, ": ", opened.status().message())));
  }
  return std::move(opened.value());
}

// What a call's memory belongs to.
struct Kept {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> scratch;
};

std::vector<cuda::CallMemory::Message> messages_of(const CallSite& site, const Group& group,
                                                   const std::vector<Message>& messages) {
  std::vector<cuda::CallMemory::Message> all;
  for (const Message& message : messages) {
    TORCH_CHECK_VALUE(message.peer != kAnySource, site,
                      "CUDA tensors cannot be received from any source: the sender has to be told "
                      "where to write; name the source");
    const std::shared_ptr<Link> link =
        message.peer == group.rank() ? nullptr : group.shared_link(message.peer);
    all.push_back({message.peer, link, message.segments});
  }
  return all;
}

}  // namespace

ProcessDevice::ProcessDevice(const CallSite& site, c10::Device device,
                             const Environment& environment, std::chrono::nanoseconds aging,
                             std::function<void()> notify)
    : device_(device),
      cuda_(open_device(site, device, environment, aging, std::move(notify))),
      tasks_("freescale-fut") {}

void ProcessDevice::check_same(const CallSite& site, c10::Device device) const {
  TORCH_CHECK_VALUE(device == device_, site, "the tensors are on ", device,
                    " but this process has exchanged tensors of ", device_,
                    " before; one process moves those of one device");
}

ProcessDevice::Begun ProcessDevice::begin(const CallSite& site, const Group& group,
                                          const Plan& plan, const Operands& operands,
                                          const Staging& staging) {
  cuda::CallMemory memory;
  memory.sends = messages_of(site, group, plan.sends);
  memory.receives = messages_of(site, group, plan.receives);
  memory.keep =
      std::make_shared<const Kept>(Kept{operands.inputs, operands.outputs, staging.tensors()});
  auto call = cuda_->begin(driver_stream(current_stream(device_)), std::move(memory));
  if (!call.ok()) {
    throw_status(Status(call.status().code(), c10::str(site, call.status().message())));
  }
  auto order = std::make_shared<DeviceOrder>(
      device_, call.value(), cuda_->submits_ahead(),
      [this](std::function<void()> task) { tasks_.post(std::move(task)); });
  return {std::move(call.value()), std::move(order)};
}

}  // namespace freescale
