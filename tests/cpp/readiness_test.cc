// When operations say that the last rank which they waited for had come, and what they tell those
// who look on of their messages.

#include "cpp/scheduler/event_log.h"
#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/stage.h"

namespace freescale::testing {
namespace {

constexpr size_t kSmall = 100;     // travels with its header
constexpr size_t kLarge = 50'000;  // announced, granted, and sent in chunks

TEST(readiness_is_when_the_last_rank_had_come) {
  for (const size_t bytes : {kSmall, kLarge}) {
    Stage stage(2);
    Buffer out0(bytes), in0(bytes), out1(bytes), in1(bytes);
    const auto first = stage.post(0, exchange(0, out0, in0), {});
    stage.run();
    CHECK(!first->done);
    const Nanoseconds before = now_ns();
    const auto last = stage.post(1, exchange(1, out1, in1), {});
    stage.run();
    CHECK_GE(first->result.ready, before);
    CHECK_LE(first->result.ready, now_ns());
    CHECK_EQ(last->result.ready, 0);
  }
}

// Its header lies in the lane; the next look would find it.
TEST(readiness_of_a_rank_that_was_there_at_the_first_look) {
  for (const size_t bytes : {kSmall, kLarge}) {
    Stage stage(2);
    Buffer out0(bytes), in0(bytes), out1(bytes), in1(bytes);
    const auto first = stage.post(0, exchange(0, out0, in0), {});
    const auto last = stage.post(1, exchange(1, out1, in1), {});
    stage.run();
    CHECK_EQ(first->result.ready, 0);
    CHECK_EQ(last->result.ready, 0);
  }
}

TEST(readiness_takes_all_ranks) {
  Stage stage(3);
  std::vector<Stage::Handle> handles;
  Nanoseconds before = 0;
  for (int rank = 0; rank < 3; ++rank) {
    before = now_ns();
    handles.push_back(stage.post(rank, plan_barrier(rank, 3), {.op = OpKind::kBarrier}));
    stage.run();
  }
  CHECK_GE(handles[0]->result.ready, before);
  CHECK_GE(handles[1]->result.ready, before);
  CHECK_EQ(handles[2]->result.ready, 0);
}

TEST(readiness_of_sends_is_that_of_their_receivers) {
  for (const bool pull : {false, true}) {
    Stage stage(2);
    stage.link(1, 0).pullable = pull;
    Buffer out(kLarge), in(kLarge);
    const auto sent = stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend});
    stage.run();
    CHECK(!sent->done);
    const Nanoseconds before = now_ns();
    const auto received = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    stage.run();
    CHECK(sent->done && received->done);
    CHECK_GE(sent->result.ready, before);
    CHECK_EQ(received->result.ready, 0);
  }
  // Nobody is waited for.
  Stage stage(2);
  Buffer out(kSmall);
  CHECK_EQ(stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend})->result.ready, 0);
}

TEST(readiness_of_a_failed_operation_is_its_end_if_a_rank_never_came) {
  Stage stage(2);
  Buffer out(kSmall), in(kSmall);
  const Nanoseconds before = now_ns();
  const auto alone = stage.post(0, exchange(0, out, in), {});
  stage.run();
  stage.close_group(0, 0, "enough");
  CHECK(alone->done && !alone->result.status.ok());
  CHECK_GE(alone->result.ready, before);
}

// ---- Messages ----------------------------------------------------------------------------------

std::vector<Event> messages_of(const std::function<void(Stage&)>& play) {
  const auto log = std::make_shared<EventLog>(
      std::initializer_list{EventKind::kMessageOut, EventKind::kMessageIn}, 100);
  EventLogs::of_process().add(log);
  Stage stage(2);
  play(stage);
  EventLogs::of_process().remove(log);
  return log->take();
}

void expect_message(const Event& event, EventKind kind, int rank, size_t bytes) {
  CHECK_EQ(event.kind, kind);
  CHECK_EQ(event.rank, rank);
  CHECK_EQ(event.peer, 1 - rank);
  CHECK_EQ(event.bytes, bytes);
  CHECK_EQ(event.op, OpKind::kBroadcast);
  CHECK_EQ(event.sequence, 1u);
  CHECK_LE(event.begin, event.end);
}

TEST(messages_tell_of_their_bytes_peers_and_times) {
  for (const bool pull : {false, true}) {
    Nanoseconds before = 0;
    const auto events = messages_of([&](Stage& stage) {
      stage.link(1, 0).pullable = pull;
      Buffer out(kLarge), in(kLarge);
      stage.post(0, one_way(0, 2, 0, out), {.op = OpKind::kBroadcast, .priority = Priority::kLow});
      stage.run();
      before = now_ns();
      // The more urgent of both ranks counts.
      stage.post(1, one_way(1, 2, 0, in), {.op = OpKind::kBroadcast, .priority = Priority::kHigh});
      stage.run();
    });
    CHECK_EQ(events.size(), 2u);
    const bool in_first = events[0].kind == EventKind::kMessageIn;
    const Event& out = events[in_first ? 1 : 0];
    const Event& in = events[in_first ? 0 : 1];
    expect_message(out, EventKind::kMessageOut, 0, kLarge);
    expect_message(in, EventKind::kMessageIn, 1, kLarge);
    CHECK_EQ(in.priority, Priority::kHigh);
    // From the matching on, not from the call of the rank that was first.
    CHECK_GE(in.begin, before);
    CHECK_GE(out.begin, before);
    if (!pull) CHECK_EQ(out.priority, Priority::kHigh);
  }
}

TEST(messages_that_travel_with_their_headers_take_no_time) {
  const auto events = messages_of([](Stage& stage) {
    Buffer out(kSmall), in(kSmall);
    stage.post(0, one_way(0, 2, 0, out), {.op = OpKind::kBroadcast});
    stage.post(1, one_way(1, 2, 0, in), {.op = OpKind::kBroadcast});
    stage.run();
  });
  CHECK_EQ(events.size(), 2u);
  expect_message(events[0], EventKind::kMessageOut, 0, kSmall);
  expect_message(events[1], EventKind::kMessageIn, 1, kSmall);
  for (const Event& event : events) CHECK_EQ(event.begin, event.end);
}

}  // namespace
}  // namespace freescale::testing
