// In which order the protocol moves chunks. One thread drives every rank, so no test here depends
// on time but those about ageing, and they only wait for at least so long.

#include <algorithm>
#include <memory>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/stage.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

constexpr size_t kChunk = 1000;  // of FakeLink
constexpr size_t kFew = 10;      // chunks: just too many to travel with the header

int level(Priority priority) { return priority_level(priority); }

// A message from rank 0 to another one, posted on both sides.
struct Transfer {
  Transfer(Stage& stage, size_t chunks, Priority sender, Priority receiver, size_t group = 0,
           int to = 1)
      : stage_(stage), to_(to), out(chunks * kChunk, 7), in(chunks * kChunk) {
    const uint32_t tag = ++last_tag;
    Stage::Call call{.op = OpKind::kRecv, .priority = receiver, .group = group, .tag = tag};
    received = stage.post(to, plan_receive(0, in.pieces()), call);
    call.op = OpKind::kSend;
    call.priority = sender;
    sent = stage.post(0, plan_send(to, out.pieces()), call);
  }
  Transfer(Stage& stage, size_t chunks, Priority both, size_t group = 0, int to = 1)
      : Transfer(stage, chunks, both, both, group, to) {}

  void expect_done() const {
    CHECK(sent->done && received->done);
    CHECK_OK(received->result.status);
    CHECK(in.bytes == out.bytes);
  }
  // One round of both ranks.
  void step() {
    stage_.step(0);
    stage_.step(to_);
  }

  Stage& stage_;
  const int to_;
  Buffer out;
  Buffer in;
  Stage::Handle sent;
  Stage::Handle received;
  static inline uint32_t last_tag = 0;
};

std::vector<int> levels_put(Stage& stage, size_t from, int to = 1) {
  std::vector<int> levels;
  const auto& puts = stage.link(0, to).puts;
  for (size_t i = from; i < puts.size(); ++i) levels.push_back(puts[i].level);
  return levels;
}

// As with a card that all of them send through.
TEST(priority_gives_links_that_share_a_wire_equal_turns) {
  constexpr int kPeers = 3;
  Stage stage(1 + kPeers);
  size_t puts_left = 0;
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int peer = 1; peer <= kPeers; ++peer) {
    stage.link(0, peer).shared_puts = &puts_left;
    transfers.push_back(std::make_unique<Transfer>(stage, 2 * kFew, Priority::kNormal, 0, peer));
  }
  stage.exchange_records();
  for (size_t turn = 0; turn < 2 * kFew * kPeers; ++turn) {
    puts_left = 1;
    for (int rank = 0; rank <= kPeers; ++rank) stage.step(rank);
    const auto puts = [&](int peer) { return stage.link(0, peer).puts.size(); };
    CHECK_EQ(puts(1) + puts(2) + puts(3), turn + 1);
    CHECK_GE(std::min({puts(1), puts(2), puts(3)}) + 1, std::max({puts(1), puts(2), puts(3)}));
  }
  for (const auto& transfer : transfers) transfer->expect_done();
}

TEST(priority_urgent_overtakes_bulk_in_flight) {
  for (const bool other_group : {false, true}) {
    Stage stage(2);
    const size_t group = other_group ? stage.add_group() : 0;
    Transfer bulk(stage, 100, Priority::kBackground);
    for (int i = 0; i < 10; ++i) bulk.step();
    Transfer urgent(stage, kFew, Priority::kUrgent, group);
    stage.exchange_records();
    const size_t before = stage.link(0, 1).puts.size();
    CHECK_LT(before, 20u);
    stage.run();
    // From its grant on, its chunks go before any further one of the bulk.
    const std::vector<int> levels = levels_put(stage, before);
    CHECK_EQ(levels.size(), kFew + 100 - before);
    CHECK(std::is_sorted(levels.begin(), levels.end()));
    CHECK_EQ(levels[kFew - 1], level(Priority::kUrgent));
    urgent.expect_done();
    bulk.expect_done();
  }
}

TEST(priority_urgent_is_delivered_before_bulk_that_was_sent_earlier) {
  Stage stage(2);
  Transfer bulk(stage, 50, Priority::kLow);
  stage.exchange_records();
  // The receiver is slow: bulk fills the lane up to the reserve.
  while (stage.step(0)) {
  }
  const size_t stuck = stage.link(0, 1).puts.size();
  Transfer urgent(stage, kFew, Priority::kUrgent);
  stage.exchange_records();
  for (size_t i = 0; i < kFew; ++i) {
    CHECK(stage.step(0));
    CHECK(stage.step(1));
  }
  urgent.expect_done();
  CHECK_EQ(levels_put(stage, stuck), std::vector<int>(kFew, level(Priority::kUrgent)));
  stage.run();
  bulk.expect_done();
}

TEST(priority_bulk_cannot_spend_the_last_credit) {
  for (const Priority bulk_priority : {Priority::kNormal, Priority::kLow, Priority::kBackground}) {
    Stage stage(2);
    Transfer bulk(stage, 50, bulk_priority);
    stage.exchange_records();
    while (stage.step(0)) {
    }
    CHECK(!stage.link(0, 1).can_put(level(bulk_priority), 10));
    CHECK(stage.link(0, 1).can_put(level(Priority::kUrgent), 10));
    stage.run();
    bulk.expect_done();
  }
}

TEST(priority_five_levels_go_in_order) {
  Stage stage(2);
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int i : {4, 2, 0, 3, 1}) {
    transfers.push_back(std::make_unique<Transfer>(stage, kFew, priority_of_level(i)));
  }
  stage.exchange_records();
  stage.run();
  const std::vector<int> levels = levels_put(stage, 0);
  CHECK_EQ(levels.size(), 5 * kFew);
  CHECK(std::is_sorted(levels.begin(), levels.end()));
  for (const auto& transfer : transfers) transfer->expect_done();
}

TEST(priority_equals_go_in_the_order_of_the_calls) {
  Stage stage(2);
  Transfer first(stage, 10, Priority::kNormal);
  Transfer second(stage, 10, Priority::kNormal);
  stage.exchange_records();
  stage.run();
  const auto& puts = stage.link(0, 1).puts;
  for (size_t i = 0; i < 20; ++i) CHECK_EQ(puts[i].token, puts[i < 10 ? 0 : 10].token);
  CHECK_NE(puts[0].token, puts[10].token);
}

TEST(priority_is_the_more_urgent_of_both_wishes) {
  for (int sender = 0; sender < kPriorityLevels; ++sender) {
    for (int receiver = 0; receiver < kPriorityLevels; ++receiver) {
      Stage stage(2);
      Transfer one(stage, kFew, priority_of_level(sender), priority_of_level(receiver));
      stage.run();
      one.expect_done();
      CHECK_EQ(levels_put(stage, 0), std::vector<int>(kFew, std::min(sender, receiver)));
    }
  }
}

TEST(priority_local_copies_go_by_urgency_too) {
  Stage stage(1);
  const auto copy = [&](Buffer& from, Buffer& to, Priority priority) {
    return stage.post(0, plan_all_to_all(0, {from.pieces()}, {to.pieces()}),
                      {.priority = priority});
  };
  Buffer bulk_from(1 << 20, 1), bulk_to(1 << 20), from(200'000, 2), to(200'000);
  const auto bulk = copy(bulk_from, bulk_to, Priority::kBackground);
  CHECK(!bulk->done);
  stage.step(0);
  const auto urgent = copy(from, to, Priority::kUrgent);
  stage.step(0);
  stage.step(0);
  CHECK(urgent->done);
  CHECK(!bulk->done);
  stage.run();
  CHECK(bulk->done);
  CHECK(to.bytes == from.bytes);
  CHECK(bulk_to.bytes == bulk_from.bytes);
}

// ---- Ageing ------------------------------------------------------------------------------------

// Rank 0 has urgent chunks for rank 1 without a pause until the test ends.
class UrgentStream {
 public:
  explicit UrgentStream(Stage& stage) : stage_(stage) {}
  // One round of all ranks.
  void step() {
    if (transfers_.empty() || transfers_.back()->sent->done) {
      transfers_.push_back(std::make_unique<Transfer>(stage_, 1000, Priority::kUrgent));
      stage_.exchange_records();
    }
    for (int rank = 0; rank < 3; ++rank) stage_.step(rank);
  }
  // Runs until `done`, for at most 10 s.
  template <typename Condition>
  void run_until(Condition done) {
    const Deadline limit = Deadline::after(std::chrono::seconds(10));
    while (!done()) {
      CHECK(!limit.passed(now_ns()));
      step();
    }
  }

 private:
  Stage& stage_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
};

TEST(ageing_lets_starved_work_climb_level_by_level) {
  Stage stage(3, milliseconds(5));
  UrgentStream stream(stage);
  stream.step();
  const Nanoseconds start = now_ns();
  Transfer bulk(stage, 20, Priority::kBackground);
  stream.run_until([&] { return bulk.received->done; });
  // From BACKGROUND to URGENT it waits four times.
  CHECK_GE(now_ns() - start, 4 * 5'000'000);
  bulk.expect_done();
}

TEST(ageing_does_not_touch_what_queues_behind_its_own_kind) {
  Stage stage(3, milliseconds(2));
  std::vector<std::unique_ptr<Transfer>> transfers;
  for (int i = 0; i < 5; ++i) {
    transfers.push_back(std::make_unique<Transfer>(stage, 200, Priority::kLow));
  }
  const Nanoseconds start = now_ns();
  while (stage.step(0) | stage.step(1)) std::this_thread::sleep_for(std::chrono::microseconds(20));
  CHECK_GE(now_ns() - start, 10'000'000);
  for (int one : levels_put(stage, 0)) CHECK_EQ(one, level(Priority::kLow));
  for (const auto& transfer : transfers) transfer->expect_done();
}

// An urgent stream to one peer must not starve bulk to another.
TEST(ageing_reaches_across_peers) {
  Stage stage(3, milliseconds(5));
  UrgentStream stream(stage);
  stream.step();
  Transfer bulk(stage, 200, Priority::kBackground, 0, 2);
  stream.run_until([&] { return bulk.received->done; });
  bulk.expect_done();
}

// Chunks that lie in the lane already wait for the receiver alone.
TEST(ageing_reaches_chunks_under_way) {
  Stage stage(3, milliseconds(5));
  stage.link(0, 1).chunk_limit = 2 * kFew;
  Transfer bulk(stage, kFew, Priority::kBackground);
  stage.exchange_records();
  while (stage.step(0)) {
  }
  CHECK(bulk.sent->done);
  UrgentStream stream(stage);
  stream.run_until([&] { return bulk.received->done; });
  bulk.expect_done();
}

TEST(ageing_reaches_local_copies) {
  Stage stage(3, milliseconds(5));
  UrgentStream stream(stage);
  stream.step();
  Buffer from(300'000, 1), to(300'000);
  Plan plan;
  plan.sends.push_back({0, from.pieces()});
  plan.receives.push_back({0, to.pieces()});
  const auto copy = stage.post(0, plan, {.priority = Priority::kBackground});
  stream.run_until([&] { return copy->done; });
  CHECK(to.bytes == from.bytes);
}

}  // namespace
}  // namespace freescale::testing
