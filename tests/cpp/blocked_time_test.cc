#include "cpp/scheduler/blocked_time.h"

#include <array>

#include "tests/cpp/check.h"
#include "tests/cpp/waits.h"

namespace freescale {
namespace {

using testing::kTrainer;
using testing::wait;

constexpr uint64_t kHelper = kTrainer + 1;

Event join(Nanoseconds begin, Nanoseconds end, uint64_t joined = kHelper) {
  Event event;
  event.kind = EventKind::kJoin;
  event.thread = kTrainer;
  event.joined = joined;
  event.begin = begin;
  event.end = end;
  return event;
}

// Of the only operation and priority in `events`, from 100 to 200.
void expect_times(const std::vector<Event>& events, Nanoseconds stragglers,
                  Nanoseconds communication) {
  const auto times = blocked_time(events, std::array{Stretch{kTrainer, 100, 200}});
  CHECK_EQ(times.size(), stragglers + communication > 0 ? 1u : 0u);
  if (times.empty()) return;
  CHECK_EQ(times[0].stragglers, stragglers);
  CHECK_EQ(times[0].communication, communication);
}

TEST(blocked_time_is_shared_out_at_the_moment_when_the_last_rank_had_come) {
  expect_times({wait(110, 130, 160)}, 20, 30);
  expect_times({wait(110, 0, 160)}, 0, 50);    // all were there before
  expect_times({wait(110, 105, 160)}, 0, 50);  // it came before the wait
  expect_times({wait(110, 160, 160)}, 50, 0);  // nothing was left to be moved
  expect_times({wait(110, 190, 160)}, 50, 0);  // it had not come when the wait was given up
  expect_times({wait(110, 115, 120), wait(130, 0, 140)}, 5, 15);
}

TEST(blocked_time_outside_of_the_stretch_does_not_count) {
  expect_times({wait(50, 110, 130)}, 10, 20);
  expect_times({wait(180, 220, 300)}, 20, 0);
  expect_times({wait(50, 60, 100), wait(200, 210, 220)}, 0, 0);
  expect_times({wait(0, 150, 300)}, 50, 50);
}

TEST(blocked_time_of_several_stretches_is_added_up) {
  const std::vector<Event> events = {wait(110, 120, 160), wait(170, 0, 190)};
  const auto times =
      blocked_time(events, std::array{Stretch{kTrainer, 100, 130}, Stretch{kTrainer, 150, 180}});
  CHECK_EQ(times.size(), 1u);
  CHECK_EQ(times[0].stragglers, 10);
  CHECK_EQ(times[0].communication, 10 + 10 + 10);
}

TEST(blocked_time_of_other_threads_counts_while_they_are_joined) {
  const Event helps = wait(110, 130, 160, kHelper);
  expect_times({helps}, 0, 0);
  expect_times({helps, join(120, 140)}, 10, 10);
  expect_times({helps, join(120, 140, kHelper + 1)}, 0, 0);
  // Before the join the trainer waited for something of its own.
  expect_times({helps, wait(105, 0, 115), join(150, 170)}, 0, 20);
  // What of the join lies in the stretch.
  expect_times({wait(50, 120, 250, kHelper), join(80, 220)}, 20, 80);
}

TEST(blocked_time_is_told_by_operation_and_priority) {
  const std::vector<Event> events = {
      wait(110, 111, 113), wait(120, 0, 121, kTrainer, Priority::kLow),
      wait(130, 0, 134, kTrainer, Priority::kLow, OpKind::kBarrier), wait(140, 142, 150)};
  const auto times = blocked_time(events, std::array{Stretch{kTrainer, 100, 200}});
  CHECK_EQ(times.size(), 3u);
  CHECK(times[0].op == OpKind::kBarrier && times[0].priority == Priority::kLow);
  CHECK_EQ(times[0].communication, 4);
  CHECK(times[1].op == OpKind::kAllReduce && times[1].priority == Priority::kNormal);
  CHECK_EQ(times[1].stragglers, 3);
  CHECK_EQ(times[1].communication, 10);
  CHECK(times[2].op == OpKind::kAllReduce && times[2].priority == Priority::kLow);
  CHECK_EQ(times[2].communication, 1);
}

}  // namespace
}  // namespace freescale
