#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "backend/device_order.h"
#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/scheduler/plan.h"
#include "cpp/scheduler/step_meter.h"

namespace freescale {

// A call for which a stream waited.
struct AwaitedCall {
  OpKind op = OpKind::kNone;
  Priority priority = Priority::kNormal;
  DeviceOrder::Times times;                    // of a call on the host
  std::shared_ptr<const DeviceOrder> order{};  // of one on a device, which may know its times later
};

// Measures the steps of a training as a device goes through them: StepMeter for a stream instead of
// a thread. Steps, loads and waits are marked in the stream by events, which are read once the
// device has passed them; nothing waits for it but times(). The step's stream is the one that is
// current when it begins.
//
// An event beside them, on a stream where nothing waits, ties a step to the clock of the host, in
// which the engine says when ranks have come.
//
// One thread takes the steps. Waits, and times(), may come from any.
class DeviceStepMeter {
 public:
  // Remembers the last `keep` steps. It hears of waits for as long as it lives.
  static std::shared_ptr<DeviceStepMeter> create(size_t keep, c10::Device device);
  DeviceStepMeter(const DeviceStepMeter&) = delete;
  DeviceStepMeter& operator=(const DeviceStepMeter&) = delete;

  // As of StepMeter.
  bool begin(uint64_t thread);
  void end(bool well);
  void begin_load(uint64_t thread);
  void end_load(bool well, uint64_t thread);
  uint64_t number();
  // Waits for the device, until it is through with the last step that has ended.
  std::vector<StepTime> times();
  // Waits that were too many to be kept.
  uint64_t dropped() const { return dropped_; }

 private:
  friend class StreamWait;

  // A place in a stream.
  using Mark = std::shared_ptr<c10::Event>;
  struct Span {
    Mark begin;
    Mark end;
  };
  // Within the step, or before it.
  struct Load {
    uint64_t thread = 0;
    bool in_step = false;
    Span span;
  };
  struct Wait {
    bool in_step = false;
    Span span;
    std::vector<AwaitedCall> calls;  // in the order in which they were waited for
  };
  struct BegunWait {
    std::shared_ptr<DeviceStepMeter> meter;
    c10::Stream stream;
    bool in_step;
    Mark begin;
  };
  struct Step {
    uint64_t number = 0;
    uint64_t thread = 0;
    Nanoseconds host = 0;  // when `clock` was recorded
    Mark clock;
    Span span;
    std::vector<Load> loads;
    std::vector<Wait> waits;
  };

  DeviceStepMeter(size_t keep, c10::Device device) : keep_(keep), device_(device) {}
  static std::vector<std::shared_ptr<DeviceStepMeter>> all();
  Mark mark(const c10::Stream& stream);
  const c10::Stream& stream_aside();
  // For StreamWait: where to mark a wait; none if it is not of the step or load that is open.
  std::optional<c10::Stream> stream_of_wait(bool on_device, uint64_t thread, bool* in_step);
  void add_wait(BegunWait begun, Mark end, const std::vector<AwaitedCall>& calls);
  void settle(bool waits_for_device);
  bool is_over(const Step& step) const;
  StepTime evaluate(const Step& step) const;
  void recycle(Step step);

  const size_t keep_;
  const c10::Device device_;
  std::optional<c10::Stream> aside_;  // the stepping thread's

  std::mutex settling_;  // guards the three below; taken before the other
  uint64_t number_ = 0;
  std::deque<Step> ended_;  // not evaluated yet
  std::deque<StepTime> times_;

  std::mutex mutex_;  // guards the rest; no call of the driver is made under it
  std::vector<Mark> spare_;
  std::optional<c10::Stream> stream_;  // of the step or load that is open
  uint64_t thread_ = 0;                // that has opened it
  bool step_is_open_ = false;
  int loads_open_ = 0;
  std::vector<Load> loads_;  // since the last step
  std::vector<Wait> waits_;
  Step open_;
  std::atomic<uint64_t> dropped_{0};
};

// Marks the current stream before and after a wait, for the meters that want to know. Made before
// it; what ends without over() is not noted. Waits must not lie within each other.
class StreamWait {
 public:
  // `on_device`: the stream waits, else the thread.
  explicit StreamWait(bool on_device);

  // The stream has been told to wait, or the thread has waited.
  void over(const std::vector<AwaitedCall>& calls);

  // Whether there is a meter. Costs a load.
  static bool any_meter();

 private:
  std::vector<DeviceStepMeter::BegunWait> begun_;
};

}  // namespace freescale
