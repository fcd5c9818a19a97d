// What this machine has: the driver, and each device.

#include <string>

#include "tests/gpu/driver_entry.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::DeviceAttribute;

int attribute(const cuda::Driver& driver, DeviceAttribute which, cuda::Device device) {
  int value = 0;
  require(driver.device_get_attribute(&value, which, device));
  return value;
}

void tell_device(const cuda::Driver& driver, int ordinal, int count) {
  const std::string name = "device " + std::to_string(ordinal);
  cuda::Device device = 0;
  require(driver.device_get(&device, ordinal));
  char product[128] = {};
  require(driver.device_get_name(product, sizeof(product), device));
  fact(name, product);
  fact(name + ": copy engines", attribute(driver, DeviceAttribute::kAsyncEngineCount, device), "");
  fact(name + ": memory can be mapped, and named by descriptors",
       attribute(driver, DeviceAttribute::kVirtualMemoryManagementSupported, device) != 0 &&
               attribute(driver, DeviceAttribute::kPosixFileDescriptorHandleSupported, device) != 0
           ? "yes"
           : "no");
  fact(name + ": memory can be named by fabric handles (where IMEX runs)",
       attribute(driver, DeviceAttribute::kFabricHandleSupported, device) != 0 ? "yes" : "no");
  std::string peers;
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other != ordinal) require(driver.device_can_access_peer(&can, device, other));
    if (can != 0) peers += (peers.empty() ? "" : ", ") + std::to_string(other);
  }
  fact(name + ": peers it can access", peers.empty() ? "none" : peers);
}

void run() {
  const cuda::Driver& driver = *require(cuda::Driver::get());
  fact("driver", (is_stand_in() ? "stand-in, CUDA " : "CUDA ") +
                     cuda::Driver::version_text(driver.version()));
  int count = 0;
  require(driver.device_get_count(&count));
  fact("devices", count, "");
  for (int ordinal = 0; ordinal < count; ++ordinal) tell_device(driver, ordinal, count);
}

}  // namespace
}  // namespace freescale::probe

int main() { freescale::probe::run(); }
