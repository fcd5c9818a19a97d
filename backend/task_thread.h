#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace freescale {

// A thread for what must not run on the engine's: it may wait for the interpreter, or for the lock
// of a device's driver. In the order in which it was given.
class TaskThread {
 public:
  explicit TaskThread(const char* name);
  // Runs what was given before.
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // Any thread. A task must not throw.
  void post(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;  // guards the next three
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace freescale
