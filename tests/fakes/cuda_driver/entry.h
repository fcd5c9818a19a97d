#pragma once

#include <memory>
#include <vector>

#include "tests/fakes/cuda_driver/device.h"
#include "tests/fakes/cuda_driver/stream.h"

namespace fake_cuda {

// What each call of the driver begins with: is the driver initialised in this process (a fork is
// another one), is a context current, is it alive; then the context's lock until the call returns.
class Entry {
 public:
  enum class Lock {
    kTake,
    kLeave,  // calls that wait for a stream, which take no lock meanwhile
  };

  explicit Entry(Lock lock = Lock::kTake);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  // For a call that waits from here on.
  void unlock();

  // If not kSuccess, the call returns it, and there is no device.
  Code code() const { return code_; }
  DeviceState& device() const { return *device_; }
  // Null for a handle that is none of the current context.
  std::shared_ptr<StreamState> stream(freescale::cuda::Stream handle) const;

 private:
  DeviceState* device_ = nullptr;
  Code code_ = Code::kSuccess;
  bool locked_ = false;
};

void set_initialized();
// For calls that need no context.
Code initialized();

// The contexts of the calling thread; the last is the current one.
std::vector<DeviceState*>& context_stack();

}  // namespace fake_cuda
