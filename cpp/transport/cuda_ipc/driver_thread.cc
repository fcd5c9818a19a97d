#include "cpp/transport/cuda_ipc/driver_thread.h"

#include <utility>

#include "cpp/base/service_thread.h"

namespace freescale::cuda {

DriverThread::DriverThread(Turn turn)
    : turn_(std::move(turn)), thread_(start_service_thread("freescale-cuda", [this] { run(); })) {}

DriverThread::~DriverThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void DriverThread::wake() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(woken_, true)) return;
  }
  changed_.notify_one();
}

void DriverThread::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    woken_ = false;
    lock.unlock();
    const std::chrono::nanoseconds pause = turn_();
    lock.lock();
    const auto called = [this] { return woken_ || stopping_; };
    if (pause == kUntilWoken) {
      changed_.wait(lock, called);
    } else {
      changed_.wait_for(lock, pause, called);
    }
  }
}

}  // namespace freescale::cuda
