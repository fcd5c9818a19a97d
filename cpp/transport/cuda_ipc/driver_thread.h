#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace freescale::cuda {

// The thread of a device that makes the calls of its driver which may block: the driver's lock may
// be held for as long as a kernel runs. So nobody who lets copies go, or waits for them, waits for
// this thread.
class DriverThread {
 public:
  // How long it sleeps after a turn, unless it is woken.
  using Turn = std::function<std::chrono::nanoseconds()>;
  static constexpr std::chrono::nanoseconds kUntilWoken = std::chrono::nanoseconds::max();

  explicit DriverThread(Turn turn);
  // Ends after the turn that it is in.
  ~DriverThread();
  DriverThread(const DriverThread&) = delete;
  DriverThread& operator=(const DriverThread&) = delete;

  // Makes it take a turn after this call. Any thread; never blocks for long.
  void wake();

 private:
  void run();

  const Turn turn_;
  std::mutex mutex_;  // guards the two below
  std::condition_variable changed_;
  bool woken_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace freescale::cuda
