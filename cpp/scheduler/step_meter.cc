#include "cpp/scheduler/step_meter.h"

#include <algorithm>
#include <utility>

namespace freescale {
namespace {

// More waits than a step of a training has; 1.3 MB.
constexpr size_t kWaits = 1 << 14;
// The times of so many steps are found at once: each looks at the waits of all.
constexpr size_t kStepsAtOnce = 64;
// More loads than this between two steps are those of a loop that takes none.
constexpr size_t kLoads = 1000;

Nanoseconds length(const Stretch& stretch) { return stretch.end - stretch.begin; }

Nanoseconds length(const std::vector<Stretch>& stretches) {
  Nanoseconds sum = 0;
  for (const Stretch& stretch : stretches) sum += length(stretch);
  return sum;
}

}  // namespace

StepTime step_time(const std::vector<Event>& events, const EndedStep& ended) {
  std::vector<Stretch> all = {ended.step};
  std::vector<Stretch> loads;
  for (const Stretch& load : ended.loads) {
    if (load.thread != ended.step.thread) continue;
    loads.push_back(load);
    if (load.end <= ended.step.begin) all.push_back(load);
  }
  StepTime time;
  time.number = ended.number;
  time.total = length(all);
  time.blocked = blocked_time(events, all);
  time.loader = length(loads);
  for (const BlockedTime& within : blocked_time(events, loads)) {
    time.loader -= within.stragglers + within.communication;
  }
  return time;
}

StepMeter::StepMeter(size_t keep)
    : keep_(keep),
      log_(std::make_shared<EventLog>(std::initializer_list{EventKind::kWait, EventKind::kJoin},
                                      kWaits)) {
  ended_.reserve(kStepsAtOnce);
  log_->pause();
  EventLogs::of_process().add(log_);
}

StepMeter::~StepMeter() { EventLogs::of_process().remove(log_); }

bool StepMeter::begin() {
  if (begin_ != 0) return false;
  log_->resume();
  begin_ = now_ns();
  return true;
}

void StepMeter::end(bool well, uint64_t thread) {
  const Nanoseconds end = now_ns();
  log_->pause();
  const Nanoseconds begin = std::exchange(begin_, 0);
  std::vector<Stretch> loads = std::exchange(loads_, {});
  if (well) ended_.push_back({number_++, {thread, begin, end}, std::move(loads)});
  if (ended_.size() >= kStepsAtOnce || log_->size() > kWaits / 2) settle();
}

void StepMeter::end_load(bool well, const Stretch& load) {
  log_->pause();
  if (well && loads_.size() < kLoads) loads_.push_back(load);
}

const std::deque<StepTime>& StepMeter::times() {
  settle();
  return times_;
}

void StepMeter::settle() {
  const std::vector<Event> events = log_->take();
  for (const EndedStep& ended : ended_) times_.push_back(step_time(events, ended));
  ended_.clear();
  while (times_.size() > keep_) times_.pop_front();
}

}  // namespace freescale
