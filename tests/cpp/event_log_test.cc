#include "cpp/scheduler/event_log.h"

#include <thread>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

Event event(EventKind kind, uint64_t sequence = 0) {
  Event made;
  made.kind = kind;
  made.sequence = sequence;
  return made;
}

std::vector<uint64_t> sequences(EventLog& log) {
  std::vector<uint64_t> found;
  for (const Event& one : log.take()) found.push_back(one.sequence);
  return found;
}

TEST(event_log_keeps_the_last_events_and_counts_the_others) {
  EventLog log({EventKind::kCall}, 3);
  for (uint64_t i = 1; i <= 5; ++i) log.note(event(EventKind::kCall, i));
  CHECK_EQ(log.events().size(), 3u);
  CHECK(sequences(log) == std::vector<uint64_t>({3, 4, 5}));
  CHECK_EQ(log.dropped(), 2u);
  CHECK(log.take().empty());
  log.note(event(EventKind::kCall, 6));
  CHECK(sequences(log) == std::vector<uint64_t>({6}));
  CHECK_EQ(log.dropped(), 2u);
}

TEST(event_logs_get_the_kinds_that_they_are_for) {
  EventLogs logs;
  CHECK(!logs.want(EventKind::kWait));
  const auto waits =
      std::make_shared<EventLog>(std::initializer_list{EventKind::kWait, EventKind::kJoin}, 9);
  const auto calls =
      std::make_shared<EventLog>(std::initializer_list{EventKind::kCall, EventKind::kWait}, 9);
  logs.add(waits);
  CHECK(logs.want(EventKind::kWait) && logs.want(EventKind::kJoin));
  CHECK(!logs.want(EventKind::kCall));
  logs.add(calls);
  CHECK(logs.want(EventKind::kCall) && !logs.want(EventKind::kMessageIn));
  logs.note(event(EventKind::kWait, 1));
  logs.note(event(EventKind::kCall, 2));
  logs.note(event(EventKind::kJoin, 3));
  logs.remove(calls);
  CHECK(logs.want(EventKind::kWait) && !logs.want(EventKind::kCall));
  logs.note(event(EventKind::kWait, 4));
  logs.remove(waits);
  CHECK(!logs.want(EventKind::kWait));
  CHECK(sequences(*waits) == std::vector<uint64_t>({1, 3, 4}));
  CHECK(sequences(*calls) == std::vector<uint64_t>({1, 2}));
}

TEST(event_logs_are_shared_by_threads) {
  EventLogs logs;
  const auto log = std::make_shared<EventLog>(std::initializer_list{EventKind::kCall}, 100);
  logs.add(log);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (logs.want(EventKind::kCall)) logs.note(event(EventKind::kCall));
      }
    });
  }
  uint64_t taken = 0;
  for (int i = 0; i < 100; ++i) taken += log->take().size();
  for (std::thread& thread : threads) thread.join();
  taken += log->take().size();
  CHECK_EQ(taken + log->dropped(), 4000u);
}

}  // namespace
}  // namespace freescale
