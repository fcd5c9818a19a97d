#include "backend/device_step_meter.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "backend/blocked_thread.h"

namespace freescale {
namespace {

// More waits than a step of a training has, and more loads than between two of them.
constexpr size_t kWaits = 10'000;
constexpr size_t kLoads = 1'000;
// A stream is past a call some microseconds before the engine has read that it is over.
constexpr Nanoseconds kPatience = 1'000'000'000;

// A step's stream is evaluated as StepMeter evaluates a thread, of which this is the number.
constexpr uint64_t kStream = 1;

struct Meters {
  std::atomic<bool> any{false};
  std::mutex mutex;  // guards all
  std::vector<std::weak_ptr<DeviceStepMeter>> all;
};

// Never destroyed: works may complete after the destructors of static objects have run.
Meters& meters() {
  static auto* const instance = new Meters();
  return *instance;
}

Nanoseconds between(const c10::Event& first, const c10::Event& second) {
  constexpr double kMillisecond = 1e6;
  return std::llround(first.elapsedTime(second) * kMillisecond);
}

}  // namespace

// ---- Steps and loads ----------------------------------------------------------------------------

std::shared_ptr<DeviceStepMeter> DeviceStepMeter::create(size_t keep, c10::Device device) {
  std::shared_ptr<DeviceStepMeter> meter(new DeviceStepMeter(keep, device));
  const std::lock_guard lock(meters().mutex);
  meters().all.push_back(meter);
  meters().any.store(true);
  return meter;
}

std::vector<std::shared_ptr<DeviceStepMeter>> DeviceStepMeter::all() {
  std::vector<std::shared_ptr<DeviceStepMeter>> found;
  const std::lock_guard lock(meters().mutex);
  std::erase_if(meters().all, [](const auto& known) { return known.expired(); });
  meters().any.store(!meters().all.empty());
  for (const auto& known : meters().all) {
    if (auto meter = known.lock()) found.push_back(std::move(meter));
  }
  return found;
}

bool DeviceStepMeter::begin(uint64_t thread) {
  if (step_is_open_) return false;
  const c10::Stream stream = current_stream(device_);
  Step step;
  step.thread = thread;
  const c10::Stream& aside = stream_aside();
  step.host = now_ns();
  step.clock = mark(aside);
  step.span.begin = mark(stream);
  const std::lock_guard lock(mutex_);
  open_ = std::move(step);
  stream_ = stream;
  thread_ = thread;
  step_is_open_ = true;
  return true;
}

void DeviceStepMeter::end(bool well) {
  const std::lock_guard settling(settling_);
  Step step;
  {
    const std::lock_guard lock(mutex_);
    step = std::exchange(open_, {});
    step.loads = std::exchange(loads_, {});
    step.waits = std::exchange(waits_, {});
    step_is_open_ = false;
  }
  if (well) {
    step.span.end = mark(*stream_);
    step.number = number_++;
    ended_.push_back(std::move(step));
  }
  settle(false);
}

uint64_t DeviceStepMeter::number() {
  const std::lock_guard settling(settling_);
  return number_;
}

void DeviceStepMeter::begin_load(uint64_t thread) {
  const c10::Stream stream = current_stream(device_);
  Mark begin = mark(stream);
  const std::lock_guard lock(mutex_);
  if (!step_is_open_) {
    stream_ = stream;
    thread_ = thread;
  }
  ++loads_open_;
  loads_.push_back({thread, step_is_open_, {std::move(begin), nullptr}});
}

void DeviceStepMeter::end_load(bool well, uint64_t thread) {
  Mark end = well ? mark(current_stream(device_)) : nullptr;
  const std::lock_guard lock(mutex_);
  --loads_open_;
  const auto load = std::find_if(loads_.rbegin(), loads_.rend(), [&](const Load& each) {
    return each.thread == thread && each.span.end == nullptr;
  });
  if (load == loads_.rend()) return;  // its step has ended without it
  load->span.end = std::move(end);
  // More of them than this between two steps are those of a loop that takes none.
  if (!well || loads_.size() > kLoads) loads_.erase(std::next(load).base());
}

std::vector<StepTime> DeviceStepMeter::times() {
  const std::lock_guard settling(settling_);
  settle(true);
  return {times_.begin(), times_.end()};
}

// Always the same one: others of the pool may be the user's, and have something to do.
const c10::Stream& DeviceStepMeter::stream_aside() {
  if (!aside_.has_value()) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    aside_ = guard.getStreamFromGlobalPool(device_, /*isHighPriority=*/true);
  }
  return *aside_;
}

DeviceStepMeter::Mark DeviceStepMeter::mark(const c10::Stream& stream) {
  Mark made;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      made = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  // The default kind of torch's events keeps no time.
  if (made == nullptr) {
    made = std::make_shared<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  }
  made->record(stream);
  return made;
}

// ---- Waits --------------------------------------------------------------------------------------

// What another stream waits for does not block the step's. A thread that waits on the host holds
// back what it would enqueue there, whatever its own stream is.
std::optional<c10::Stream> DeviceStepMeter::stream_of_wait(bool on_device, uint64_t thread,
                                                           bool* in_step) {
  const std::lock_guard lock(mutex_);
  *in_step = step_is_open_;
  if (!step_is_open_ && loads_open_ == 0) return std::nullopt;
  const bool blocks = on_device ? current_stream(device_) == *stream_ : thread == thread_;
  return blocks ? stream_ : std::nullopt;
}

void DeviceStepMeter::add_wait(BegunWait begun, Mark end, const std::vector<AwaitedCall>& calls) {
  const std::lock_guard lock(mutex_);
  // The end of a step, or of a load before it, came between: by another thread.
  if (begun.in_step != step_is_open_ || (!step_is_open_ && loads_open_ == 0)) return;
  if (waits_.size() >= kWaits) {
    dropped_.fetch_add(1);
    return;
  }
  waits_.push_back({begun.in_step, {std::move(begun.begin), std::move(end)}, calls});
}

bool StreamWait::any_meter() { return meters().any.load(std::memory_order_relaxed); }

StreamWait::StreamWait(bool on_device) {
  if (!any_meter()) return;
  const uint64_t thread = thread_number();
  for (auto& meter : DeviceStepMeter::all()) {
    bool in_step = false;
    const auto stream = meter->stream_of_wait(on_device, thread, &in_step);
    if (!stream.has_value()) continue;
    auto begin = meter->mark(*stream);
    begun_.push_back({std::move(meter), *stream, in_step, std::move(begin)});
  }
}

void StreamWait::over(const std::vector<AwaitedCall>& calls) {
  for (auto& begun : std::exchange(begun_, {})) {
    const auto meter = begun.meter;
    auto end = meter->mark(begun.stream);
    meter->add_wait(std::move(begun), std::move(end), calls);
  }
}

// ---- What the device has passed -----------------------------------------------------------------

bool DeviceStepMeter::is_over(const Step& step) const {
  const auto knows = [](const AwaitedCall& call) {
    return call.order == nullptr || call.order->times().has_value();
  };
  return step.clock->query() && step.span.end->query() &&
         std::all_of(step.waits.begin(), step.waits.end(), [&](const Wait& wait) {
           return std::all_of(wait.calls.begin(), wait.calls.end(), knows);
         });
}

void DeviceStepMeter::settle(bool waits_for_device) {
  const Nanoseconds begin = now_ns();
  while (!ended_.empty()) {
    if (waits_for_device) {
      ended_.front().clock->synchronize();
      ended_.front().span.end->synchronize();
      while (!is_over(ended_.front()) && now_ns() - begin < kPatience) std::this_thread::yield();
    } else if (!is_over(ended_.front())) {
      return;
    }
    times_.push_back(evaluate(ended_.front()));
    if (times_.size() > keep_) times_.pop_front();
    recycle(std::move(ended_.front()));
    ended_.pop_front();
  }
}

StepTime DeviceStepMeter::evaluate(const Step& step) const {
  const c10::Event& begin = *step.span.begin;
  const Nanoseconds begun = step.host + between(*step.clock, begin);
  // An event is only compared to a later one.
  const auto time_of = [&](const Mark& mark, bool in_step) {
    return in_step ? begun + between(begin, *mark) : begun - between(*mark, begin);
  };
  EndedStep ended{step.number, {kStream, begun, time_of(step.span.end, true)}, {}};
  for (const Load& load : step.loads) {
    if (load.thread != step.thread || load.span.end == nullptr) continue;
    ended.loads.push_back(
        {kStream, time_of(load.span.begin, load.in_step), time_of(load.span.end, load.in_step)});
  }
  std::vector<Event> events;
  for (const Wait& wait : step.waits) {
    Nanoseconds from = time_of(wait.span.begin, wait.in_step);
    const Nanoseconds to = time_of(wait.span.end, wait.in_step);
    for (const AwaitedCall& call : wait.calls) {
      // Of a call that is not over nobody knows whether its ranks have come.
      const auto times = call.order == nullptr
                             ? call.times
                             : call.order->times().value_or(DeviceOrder::Times{to, to});
      const bool last = &call == &wait.calls.back();
      const Nanoseconds until = last ? to : std::clamp(times.end, from, to);
      Event event;
      event.kind = EventKind::kWait;
      event.op = call.op;
      event.priority = call.priority;
      event.thread = kStream;
      event.begin = std::exchange(from, until);
      event.ready = times.ready;
      event.end = until;
      if (event.end > event.begin) events.push_back(event);
    }
  }
  return step_time(events, ended);
}

// Its events serve again: a driver takes longer to make one than to record it.
void DeviceStepMeter::recycle(Step step) {
  const std::lock_guard lock(mutex_);
  const auto give = [this](Mark& mark) {
    if (mark != nullptr) spare_.push_back(std::move(mark));
  };
  const auto give_both = [&](Span& span) {
    give(span.begin);
    give(span.end);
  };
  give(step.clock);
  give_both(step.span);
  for (Load& load : step.loads) give_both(load.span);
  for (Wait& wait : step.waits) give_both(wait.span);
}

}  // namespace freescale
