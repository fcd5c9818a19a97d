#pragma once

#include "cpp/device/cuda_driver.h"

namespace freescale::cuda {

// One of the references that keep physical memory alive; a mapping is another.
class OwnedHandle {
 public:
  OwnedHandle(const Driver& driver, AllocationHandle handle) : driver_(driver), handle_(handle) {}
  OwnedHandle(const OwnedHandle&) = delete;
  OwnedHandle& operator=(const OwnedHandle&) = delete;
  // Fails only for a handle that is none.
  ~OwnedHandle() { driver_.mem_release.code(handle_); }

  AllocationHandle get() const { return handle_; }

 private:
  const Driver& driver_;
  const AllocationHandle handle_;
};

}  // namespace freescale::cuda
