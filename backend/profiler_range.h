#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include <c10/util/ThreadLocalDebugInfo.h>

namespace freescale {

// What a profiler shows for a call, from the call until it is over.
//
// torch's profiler belongs to the thread that started it, and frees its events when it stops. A
// range that ends later writes to that memory (torch 2.13; c10d::Work ends ranges on whichever
// thread completes the work, and with gloo such a process crashes, too). So a range is ended by the
// thread that began it, and only while its profiler is there: when the call is over on that thread,
// or when the thread comes here next, by a wait or a call. torch shows one that misses its profiler
// as still under way then.
class ProfilerRange {
 public:
  // Takes what ends the range away from the Work that has just begun it, on this thread. Null, and
  // nothing is taken, where no profiler of this thread is on: others may be told by any thread.
  static std::shared_ptr<ProfilerRange> take(std::function<void()>& end);
  ~ProfilerRange();

  // The call is over. For any thread.
  void note_over();
  // Ends the ranges of this thread whose calls are over.
  static void end_those_over();

 private:
  ProfilerRange(std::function<void()> end, const c10::DebugInfoBase* profiler);
  static const c10::DebugInfoBase* current_profiler();

  const c10::DebugInfoBase* const profiler_;  // kept alive by end_
  const std::thread::id thread_ = std::this_thread::get_id();
  std::function<void()> end_;  // for that thread alone
  std::atomic<bool> over_{false};
};

}  // namespace freescale
