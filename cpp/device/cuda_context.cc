#include "cpp/device/cuda_context.h"

namespace freescale::cuda {

Result<PrimaryContext> PrimaryContext::retain(const Driver& driver, int ordinal) {
  Device device = 0;
  if (Status status = driver.device_get(&device, ordinal); !status.ok()) return status;
  Context context = nullptr;
  if (Status status = driver.device_primary_ctx_retain(&context, device); !status.ok()) {
    return status;
  }
  return PrimaryContext(driver, device, context);
}

PrimaryContext::PrimaryContext(PrimaryContext&& other) noexcept
    : driver_(other.driver_),
      device_(other.device_),
      context_(std::exchange(other.context_, nullptr)) {}

PrimaryContext::~PrimaryContext() {
  // Fails only after an error that has ended the context already.
  if (context_ != nullptr) driver_->device_primary_ctx_release.code(device_);
}

CurrentContext::~CurrentContext() {
  Context popped = nullptr;
  // As above: nothing is left to restore then.
  if (status_.ok()) driver_.ctx_pop_current.code(&popped);
}

}  // namespace freescale::cuda
