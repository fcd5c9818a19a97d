#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "cpp/scheduler/blocked_time.h"
#include "cpp/scheduler/event_log.h"

namespace freescale {

// Where the time of one step of a thread went.
struct StepTime {
  uint64_t number = 0;
  Nanoseconds total = 0;   // of the step, and of the loads since the one before
  Nanoseconds loader = 0;  // of all loads, but for what was blocked in them
  std::vector<BlockedTime> blocked;
};

// A step that has ended, and the loads since the one before, which may lie within it.
struct EndedStep {
  uint64_t number = 0;
  Stretch step;
  std::vector<Stretch> loads;
};

// `events` are all waits that the step may have had, and others. Loads of other threads do not
// count.
StepTime step_time(const std::vector<Event>& events, const EndedStep& ended);

// Measures the steps of a training. Called where every microsecond is overhead, and by code that
// the step has driven out of the caches, so the end of a step only notes; what its time was is
// found for many steps at once. Not thread-safe.
class StepMeter {
 public:
  // Remembers the last `keep` steps.
  explicit StepMeter(size_t keep);
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  // False if a step has not ended yet. Steps are of the thread that ends them.
  bool begin();
  // The step counts if it ended well.
  void end(bool well, uint64_t thread);
  // A load may be of any thread, before or within a step.
  void begin_load() { log_->resume(); }
  void end_load(bool well, const Stretch& load);

  uint64_t number() const { return number_; }  // of the step that is open or next
  const std::deque<StepTime>& times();
  // Waits that were too many to be kept.
  uint64_t dropped() const { return log_->dropped(); }

 private:
  void settle();

  const size_t keep_;
  // Paused where there is neither a step nor a load: an evaluation may have any number of waits.
  const std::shared_ptr<EventLog> log_;
  std::vector<EndedStep> ended_;  // whose times are not known yet
  std::deque<StepTime> times_;
  std::vector<Stretch> loads_;  // since the last step
  Nanoseconds begin_ = 0;       // 0: no step is open
  uint64_t number_ = 0;
};

}  // namespace freescale
