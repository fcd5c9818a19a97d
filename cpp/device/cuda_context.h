#pragma once

#include <utility>

#include "cpp/base/status.h"
#include "cpp/device/cuda_driver.h"

namespace freescale::cuda {

// The primary context of a device, the one that torch and the CUDA runtime use, kept alive while
// this object lives. Immutable, for all threads.
class PrimaryContext {
 public:
  // Creates the context if nobody in the process has yet; that takes device memory and some 100 ms.
  static Result<PrimaryContext> retain(const Driver& driver, int ordinal);
  PrimaryContext(PrimaryContext&& other) noexcept;
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext();

  const Driver& driver() const { return *driver_; }
  Context handle() const { return context_; }
  Device device() const { return device_; }

 private:
  PrimaryContext(const Driver& driver, Device device, Context context)
      : driver_(&driver), device_(device), context_(context) {}

  const Driver* driver_;
  Device device_;
  Context context_;  // null when moved from
};

// Makes a context current in this thread, where most calls of the driver look for it, and what was
// current before, if anything, again at the end of the scope: the device that a program of torch
// has chosen is the thread's current context too, and stays as it was. For the stack of one thread,
// ends in reverse order of their starts.
class CurrentContext {
 public:
  explicit CurrentContext(const PrimaryContext& context)
      : driver_(context.driver()), status_(driver_.ctx_push_current(context.handle())) {}
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();

  // If not ok, the thread's current context is what it was.
  const Status& status() const { return status_; }

 private:
  const Driver& driver_;
  Status status_;
};

}  // namespace freescale::cuda
