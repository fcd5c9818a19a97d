#include "cpp/scheduler/flight_recorder.h"

#include <thread>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

FlightRecord call(uint64_t sequence) {
  FlightRecord record;
  record.sequence = sequence;
  return record;
}

std::vector<uint64_t> numbers(const FlightRecorder& recorder) {
  std::vector<uint64_t> found;
  for (const FlightRecord& record : recorder.records()) found.push_back(record.number);
  return found;
}

TEST(flight_recorder_keeps_the_last_calls_in_order) {
  FlightRecorder recorder(3);
  CHECK(recorder.records().empty());
  for (uint64_t i = 1; i <= 5; ++i) CHECK_EQ(recorder.begin(call(10 + i)), i);
  CHECK(numbers(recorder) == std::vector<uint64_t>({3, 4, 5}));
  CHECK_EQ(recorder.records()[0].sequence, 13u);
}

TEST(flight_recorder_notes_how_calls_end) {
  FlightRecorder recorder(4);
  const uint64_t good = recorder.begin(call(1));
  const uint64_t bad = recorder.begin(call(2));
  recorder.begin(call(3));
  OpResult result;
  result.paths.add(Path::kPull);
  recorder.end(good, result);
  recorder.end(bad, {Status::timed_out("too late")});
  const auto records = recorder.records();
  CHECK(records[0].state == FlightRecord::State::kCompleted);
  CHECK(records[0].paths.has(Path::kPull) && !records[0].paths.has(Path::kChunks));
  CHECK(records[1].state == FlightRecord::State::kFailed);
  CHECK_EQ(records[1].failure, "too late");
  CHECK(records[2].state == FlightRecord::State::kInFlight);
  CHECK_EQ(records[2].end, 0);
}

TEST(flight_recorder_leaves_the_successor_of_a_forgotten_call_alone) {
  FlightRecorder recorder(2);
  const uint64_t forgotten = recorder.begin(call(1));
  recorder.begin(call(2));
  recorder.begin(call(3));
  recorder.end(forgotten, {Status::timed_out("too late")});
  for (const FlightRecord& record : recorder.records()) {
    CHECK(record.state == FlightRecord::State::kInFlight);
  }
}

TEST(flight_recorder_can_be_off) {
  FlightRecorder recorder(0);
  CHECK_EQ(recorder.begin(call(1)), 0u);
  recorder.end(0, {});
  CHECK(recorder.records().empty());
}

TEST(flight_recorder_is_shared_by_threads) {
  FlightRecorder recorder(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) recorder.end(recorder.begin(call(1)), {});
    });
  }
  for (int i = 0; i < 100; ++i) CHECK_LE(recorder.records().size(), 16u);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(recorder.records().back().number, 8000u);
}

}  // namespace
}  // namespace freescale
