#include "cpp/device/pinned_memory.h"

namespace freescale::cuda {

Result<PinnedMemory> PinnedMemory::register_memory(const PrimaryContext& context,
                                                   std::span<std::byte> memory) {
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  const Driver& driver = context.driver();
  if (Status status =
          driver.mem_host_register(memory.data(), memory.size(), kHostPortable | kHostDeviceMap);
      !status.ok()) {
    return status;
  }
  DevicePtr device = 0;
  if (Status status = driver.mem_host_get_device_pointer(&device, memory.data(), 0); !status.ok()) {
    driver.mem_host_unregister.code(memory.data());
    return status;
  }
  return PinnedMemory(context, memory, device);
}

PinnedMemory::~PinnedMemory() {
  if (context_ == nullptr) return;
  const CurrentContext current(*context_);
  // Fails only with a context that is lost, and then nothing is registered any more.
  context_->driver().mem_host_unregister.code(memory_.data());
}

}  // namespace freescale::cuda
