#include "tests/fakes/cuda_driver/entry.h"

#include <unistd.h>

#include <atomic>

namespace fake_cuda {
namespace {

std::atomic<pid_t> initialized_process = 0;

}  // namespace

void set_initialized() {
  pid_t nobody = 0;
  initialized_process.compare_exchange_strong(nobody, getpid());
}

Code initialized() {
  return initialized_process == getpid() ? Code::kSuccess : Code::kNotInitialized;
}

std::vector<DeviceState*>& context_stack() {
  thread_local std::vector<DeviceState*> stack;
  return stack;
}

Entry::Entry(Lock lock) {
  code_ = initialized();
  if (code_ != Code::kSuccess) return;
  device_ = context_stack().empty() ? nullptr : context_stack().back();
  if (device_ == nullptr || device_->owners() == 0) {
    code_ = Code::kInvalidContext;
    return;
  }
  if (lock == Lock::kTake) {
    device_->lock().lock();
    locked_ = true;
  }
  code_ = device_->error();
}

Entry::~Entry() { unlock(); }

void Entry::unlock() {
  if (locked_) device_->lock().unlock();
  locked_ = false;
}

std::shared_ptr<StreamState> Entry::stream(freescale::cuda::Stream handle) const {
  // 1 and 2 are the names of the default stream that say whose it is.
  return reinterpret_cast<uintptr_t>(handle) <= 2 ? device_->default_stream()
                                                  : device_->find_stream(handle);
}

}  // namespace fake_cuda
