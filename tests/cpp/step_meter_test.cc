#include "cpp/scheduler/step_meter.h"

#include "tests/cpp/check.h"
#include "tests/cpp/waits.h"

namespace freescale {
namespace {

using testing::kTrainer;
using testing::wait;

constexpr uint64_t kOther = kTrainer + 1;

TEST(step_time_has_the_loads_before_and_within) {
  const std::vector<Event> events = {wait(12, 14, 15), wait(33, 0, 34), wait(52, 55, 60),
                                     wait(70, 90, 80)};
  const EndedStep ended = {
      5, {kTrainer, 30, 100}, {{kTrainer, 10, 20}, {kTrainer, 50, 65}, {kOther, 22, 28}}};
  const StepTime time = step_time(events, ended);
  CHECK_EQ(time.number, 5u);
  CHECK_EQ(time.total, 10 + 70);
  // 3 of the load before, and 8 of that within, were blocked.
  CHECK_EQ(time.loader, 7 + 7);
  CHECK_EQ(time.blocked.size(), 1u);
  CHECK_EQ(time.blocked[0].stragglers, 2 + 3 + 10);
  CHECK_EQ(time.blocked[0].communication, 1 + 1 + 5);
}

TEST(step_meter_knows_its_steps) {
  StepMeter meter(100);
  const Nanoseconds before = now_ns();
  CHECK(meter.begin());
  CHECK(!meter.begin());
  const Nanoseconds begun = now_ns();
  EventLogs::of_process().note(wait(begun, begun + 1, begun + 3));
  while (now_ns() < begun + 3) {
  }
  meter.end(true, kTrainer);
  CHECK_EQ(meter.number(), 1u);
  CHECK_EQ(meter.times().size(), 1u);
  const StepTime& time = meter.times()[0];
  CHECK_GE(time.total, 3);
  CHECK_LE(time.total, now_ns() - before);
  CHECK_EQ(time.blocked.size(), 1u);
  CHECK_EQ(time.blocked[0].stragglers, 1);
  CHECK_EQ(time.blocked[0].communication, 2);
}

TEST(step_meter_does_not_count_steps_that_fail) {
  StepMeter meter(100);
  CHECK(meter.begin());
  meter.begin_load();
  meter.end_load(true, {kTrainer, 1, 2});
  meter.end(false, kTrainer);
  meter.begin_load();
  meter.end_load(false, {kTrainer, 1, 2});
  CHECK(meter.times().empty());
  CHECK(meter.begin());
  meter.end(true, kTrainer);
  CHECK_EQ(meter.times().size(), 1u);
  CHECK_EQ(meter.times()[0].number, 0u);
  CHECK_EQ(meter.times()[0].loader, 0);
}

// Their times are found some at a time.
TEST(step_meter_takes_many_steps_and_keeps_the_last) {
  StepMeter meter(150);
  std::vector<Nanoseconds> begins;
  for (int i = 0; i < 300; ++i) {
    CHECK(meter.begin());
    begins.push_back(now_ns());
    for (int k = 0; k < 100; ++k) EventLogs::of_process().note(wait(begins[i], 0, begins[i] + 1));
    while (now_ns() <= begins[i]) {
    }
    meter.end(true, kTrainer);
  }
  CHECK_EQ(meter.dropped(), 0u);
  CHECK_EQ(meter.times().size(), 150u);
  for (size_t i = 0; i < 150; ++i) {
    const StepTime& time = meter.times()[i];
    CHECK_EQ(time.number, 150 + i);
    CHECK_EQ(time.blocked.size(), 1u);
    CHECK_EQ(time.blocked[0].communication, 100);
  }
}

TEST(step_meter_hears_of_waits_in_loads_and_steps_alone) {
  StepMeter meter(1);
  for (int i = 0; i < 100'000; ++i) EventLogs::of_process().note(wait(1, 0, 2));
  meter.begin_load();
  EventLogs::of_process().note(wait(11, 0, 13));
  meter.end_load(true, {kTrainer, 10, 20});
  EventLogs::of_process().note(wait(14, 0, 15));
  CHECK(meter.begin());
  meter.end(true, kTrainer);
  CHECK_EQ(meter.dropped(), 0u);
  const StepTime& time = meter.times()[0];
  CHECK_EQ(time.loader, 10 - 2);
  CHECK_EQ(time.blocked.size(), 1u);
  CHECK_EQ(time.blocked[0].communication, 2);
}

TEST(step_meter_that_is_gone_is_told_nothing) {
  {
    StepMeter meter(1);
    CHECK(EventLogs::of_process().want(EventKind::kWait));
  }
  CHECK(!EventLogs::of_process().want(EventKind::kWait));
}

}  // namespace
}  // namespace freescale
