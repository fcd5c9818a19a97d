#pragma once

#include <utility>

#include "cpp/device/cuda_driver.h"

namespace freescale::cuda {

// One of the references that keep physical memory alive; a mapping is another.
class OwnedHandle {
 public:
  OwnedHandle(const Driver& driver, AllocationHandle handle) : driver_(&driver), handle_(handle) {}
  OwnedHandle(OwnedHandle&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), handle_(other.handle_) {}
  OwnedHandle& operator=(OwnedHandle&&) = delete;
  ~OwnedHandle() {
    // Fails only for a handle that is none.
    if (driver_ != nullptr) driver_->mem_release.code(handle_);
  }

  AllocationHandle get() const { return handle_; }

 private:
  const Driver* driver_;  // null when moved from
  AllocationHandle handle_;
};

}  // namespace freescale::cuda
