// The order in which a pacer lets the chunks of copy queues go.

#include "cpp/device/copy_pacer.h"

#include <functional>
#include <thread>
#include <vector>

#include "cpp/base/clock.h"
#include "tests/cpp/check.h"
#include "tests/cpp/copy_lane.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::cuda {
namespace {

using testing::CopyLane;
using testing::on_each_overtaking_queue;
using testing::StandIn;
using testing::Standstill;
using testing::Submission;
using testing::WordPool;

constexpr size_t kChunk = testing::kLaneChunk;

// --- With queues of numbers alone --------------------------------------------------------------

// What a pacer sees of a queue, set by the test.
class CountedQueue : public CopyQueue {
 public:
  bool has_room() const override { return false; }
  Result<uint32_t> submit(CopyRequest) override { return Status::cancelled("counts only"); }
  Result<bool> drive() override { return false; }
  bool is_over(uint32_t) const override { return false; }
  uint32_t releasable() override { return ready; }
  void release(uint32_t chunks) override {
    CHECK_LE(chunks, ready);
    ready -= chunks;
    moving += chunks;
    released += chunks;
  }
  uint32_t in_flight() override {
    const uint32_t seen = moving;
    if (seen > 0 && arrives_when_counted) --moving;
    return seen;
  }
  bool drained() const override { return ready + moving == 0; }
  void abandon(uint32_t) override {}
  void abort() override {}

  uint32_t ready = 0;
  uint32_t moving = 0;
  uint32_t released = 0;
  // Chunks arrive at any time, so in the middle of a step, too.
  bool arrives_when_counted = false;
};

constexpr Nanoseconds kAging = 100;

struct Aging {
  explicit Aging(const CopyPacer::Windows& windows) : pacer(windows, kAging) {
    pacer.add(low, Priority::kLow);
    pacer.add(background, Priority::kBackground);
    pacer.add(urgent, Priority::kUrgent);
  }
  // What was in flight arrives, then a step.
  void turn(Nanoseconds now) {
    for (CountedQueue* queue : {&urgent, &low, &background}) queue->moving = 0;
    pacer.step(now);
  }

  CountedQueue urgent, low, background;
  CopyPacer pacer;
};

TEST(a_level_that_starves_gets_a_chunk_in_its_time) {
  Aging test({8, 8, 4, 2, 2});
  test.urgent.ready = 100000;
  test.low.ready = 100;
  for (Nanoseconds now = 1000; now < 1100; ++now) test.turn(now);
  CHECK_EQ(test.low.released, 0u);
  CHECK_EQ(test.urgent.released, 100 * 8u);
  test.turn(1100);
  CHECK_EQ(test.low.released, 1u);
  CHECK_EQ(test.urgent.released, 100 * 8u + 7);
  // And waits again for as long.
  for (Nanoseconds now = 1101; now < 1200; ++now) test.turn(now);
  CHECK_EQ(test.low.released, 1u);
  test.turn(1200);
  CHECK_EQ(test.low.released, 2u);
  // All levels that starve do.
  test.background.ready = 100;
  test.turn(1250);
  test.turn(1299);
  CHECK_EQ(test.background.released, 0u);
  test.turn(1350);
  CHECK_EQ(test.low.released, 3u);
  CHECK_EQ(test.background.released, 1u);
}

TEST(only_a_level_with_chunks_to_let_go_starves) {
  Aging test({8, 8, 4, 2, 2});
  test.urgent.ready = 100000;
  test.turn(0);
  test.turn(1000);
  test.low.ready = 5;  // since 1001
  test.turn(1001);
  test.turn(1100);
  CHECK_EQ(test.low.released, 0u);
  // Nothing is ready any more, and something again later.
  test.low.ready = 0;
  test.turn(1101);
  test.low.ready = 5;
  test.turn(1150);
  test.turn(1249);
  CHECK_EQ(test.low.released, 0u);
  test.turn(1250);
  CHECK_EQ(test.low.released, 1u);
}

TEST(a_level_that_is_served_does_not_starve) {
  Aging test({8, 8, 4, 2, 2});
  test.low.ready = 1000;
  test.turn(0);
  CHECK_EQ(test.low.released, 2u);
  test.turn(99);
  CHECK_EQ(test.low.released, 4u);
  test.urgent.ready = 100000;
  test.turn(198);
  CHECK_EQ(test.low.released, 4u);
  test.turn(199);
  CHECK_EQ(test.low.released, 5u);
}

TEST(a_level_that_starves_keeps_to_the_widest_window) {
  Aging test({8, 8, 4, 2, 2});
  test.urgent.ready = 100000;
  test.low.ready = 100;
  test.pacer.step(0);
  test.turn(50);
  CHECK_EQ(test.urgent.moving, 8u);
  // Engines stand still.
  CHECK_EQ(test.pacer.step(100), 0u);
  CHECK_EQ(test.pacer.step(149), 0u);
  // The next room is its own, although its window is full.
  test.urgent.moving = 7;
  CHECK_EQ(test.pacer.step(149), 1u);
  CHECK_EQ(test.low.released, 1u);
  CHECK_EQ(test.urgent.moving, 7u);
}

// Where chunks take longer than `aging`, everybody starves.
TEST(of_levels_that_starve_the_one_that_waits_longest_is_first) {
  Aging test({1, 1, 1, 1, 1});
  test.urgent.ready = test.low.ready = test.background.ready = 100;
  for (Nanoseconds now = 0; now <= 30000; now += 1000) test.turn(now);
  CHECK_EQ(test.urgent.released, 11u);  // the first, when nobody starved
  CHECK_EQ(test.low.released, 10u);
  CHECK_EQ(test.background.released, 10u);
}

// What arrives meanwhile makes room for more of the urgent ones only.
TEST(a_level_waits_while_a_more_urgent_one_has_chunks_left) {
  Aging test({4, 4, 4, 4, 4});
  test.urgent.ready = 100;
  test.urgent.arrives_when_counted = true;
  test.low.ready = 100;
  for (int step = 0; step < 5; ++step) test.pacer.step(step);
  CHECK_LE(5u, test.urgent.released);
  CHECK_EQ(test.low.released, 0u);
}

// Urgent chunks that become ready one by one are never left over, and fill smaller windows alone.
TEST(a_level_whose_window_others_fill_gets_a_chunk_too) {
  Aging test({8, 8, 4, 2, 2});
  test.urgent.ready = 4;
  test.low.ready = 100;
  CHECK_EQ(test.pacer.step(0), 4u);
  CHECK_EQ(test.pacer.step(99), 0u);
  CHECK_EQ(test.pacer.step(100), 1u);
  CHECK_EQ(test.low.released, 1u);
  CHECK_EQ(test.pacer.step(150), 0u);
}

TEST(a_window_counts_what_all_queues_have_in_flight) {
  Aging test({8, 8, 4, 3, 2});
  test.background.moving = test.low.moving = 1;
  test.low.ready = 9;
  CHECK_EQ(test.pacer.step(0), 1u);
  test.pacer.remove(test.background);
  CHECK_EQ(test.pacer.step(1), 1u);
  test.pacer.remove(test.low);
  test.low.moving = 0;
  CHECK_EQ(test.pacer.step(2), 0u);
}

// --- With queues of copies ---------------------------------------------------------------------

void drive(const std::vector<const CopyLane*>& lanes) {
  for (const CopyLane* lane : lanes) CHECK_OK(lane->queue->drive());
}

void run_until_drained(CopyPacer& pacer, const std::vector<const CopyLane*>& lanes) {
  for (const CopyLane* lane : lanes) {
    while (!lane->queue->drained()) {
      pacer.step(now_ns());
      drive(lanes);
      std::this_thread::yield();
    }
    lane->expect_arrived(lane->content.size());
  }
}

TEST(an_urgent_copy_waits_for_the_window_of_a_bulk_one) {
  on_each_overtaking_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane bulk(stand_in, words, submission, 20 * kChunk);
    CopyLane urgent(stand_in, words, submission, 10 * kChunk);
    CopyPacer pacer({6, 6, 4, 2, 2});
    pacer.add(*bulk.queue, Priority::kLow);
    pacer.add(*urgent.queue, Priority::kUrgent);
    Standstill standstill(stand_in, words);
    bulk.submit(bulk.request());
    CHECK_EQ(pacer.step(0), 2u);
    CHECK_EQ(pacer.step(0), 0u);
    CHECK_EQ(bulk.queue->in_flight(), 2u);

    urgent.submit(urgent.request());
    CHECK_EQ(pacer.step(0), 4u);
    CHECK_EQ(urgent.queue->in_flight(), 4u);
    CHECK_EQ(bulk.queue->in_flight(), 2u);
    CHECK_EQ(pacer.step(0), 0u);

    // The rest of the urgent one goes before any more of the bulk.
    standstill.end();
    while (!urgent.queue->drained()) {
      const bool all_let_go = urgent.queue->releasable() == 0;
      if (!all_let_go) CHECK_EQ(bulk.queue->releasable(), 18u);
      pacer.step(0);
      drive({&urgent, &bulk});
    }
    run_until_drained(pacer, {&urgent, &bulk});
  });
}

TEST(queues_of_one_level_take_turns) {
  on_each_overtaking_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane first(stand_in, words, submission, 9 * kChunk);
    CopyLane second(stand_in, words, submission, 9 * kChunk);
    CopyPacer pacer({8, 8, 5, 2, 2});
    pacer.add(*first.queue, Priority::kNormal);
    pacer.add(*second.queue, Priority::kNormal);
    Standstill standstill(stand_in, words);
    first.submit(first.request());
    second.submit(second.request());
    CHECK_EQ(pacer.step(0), 5u);
    CHECK_EQ(first.queue->in_flight(), 3u);
    CHECK_EQ(second.queue->in_flight(), 2u);
    standstill.end();
    first.await_progress(3);
    second.await_progress(2);
    CHECK_EQ(pacer.step(0), 5u);
    CHECK_EQ(second.queue->releasable(), 4u);  // began this time
    run_until_drained(pacer, {&first, &second});
    pacer.remove(*first.queue);
    first.submit(first.request());
    CHECK_EQ(pacer.step(0), 0u);
    first.queue->abort();
    first.await_drained();
  });
}

TEST(what_is_not_ready_holds_up_nobody) {
  on_each_overtaking_queue([](StandIn& stand_in, Submission submission) {
    WordPool words(stand_in.context());
    CopyLane urgent(stand_in, words, submission, 4 * kChunk);
    CopyLane bulk(stand_in, words, submission, 4 * kChunk);
    const PinnedWord called = words.next();
    CopyPacer pacer;
    pacer.add(*urgent.queue, Priority::kUrgent);
    pacer.add(*bulk.queue, Priority::kLow);
    // A peer has not called the urgent one yet.
    urgent.submit(urgent.request({{called, 1}}));
    bulk.submit(bulk.request());
    run_until_drained(pacer, {&bulk});
    urgent.expect_arrived(0);
    called.host->store(1);
    run_until_drained(pacer, {&urgent});
  });
}

}  // namespace
}  // namespace freescale::cuda
