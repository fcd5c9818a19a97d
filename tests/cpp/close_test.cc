// Leaving: a group is closed, a rank gives up, a link is lost. On protocols that one thread drives.

#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/stage.h"

namespace freescale::testing {
namespace {

constexpr size_t kSmall = 100;
constexpr size_t kLarge = 50'000;

void expect_cancelled(const Stage::Handle& handle, std::string_view why) {
  CHECK(handle->done);
  CHECK_EQ(handle->code(), StatusCode::kCancelled);
  expect_text(handle->text(), why);
}

// ---- Closing a group ---------------------------------------------------------------------------

TEST(close_ends_what_is_open_on_both_sides) {
  for (size_t bytes : {kSmall, kLarge}) {
    Stage stage(2);
    const size_t other = stage.add_group();
    Buffer out(bytes), in(bytes), in2(bytes);
    const auto waits = stage.post(1, exchange(1, out, in), {});
    const auto receives = stage.post(1, plan_receive(0, in2.pieces()), {.op = OpKind::kRecv});
    stage.run();
    stage.close_group(0, 0, "it was destroyed");
    stage.run();
    for (const auto& handle : {waits, receives}) {
      expect_cancelled(handle, "rank 0 left the group: it was destroyed");
      expect_text(handle->text(), "rank 1: ");
    }
    expect_works(stage, other);
  }
}

TEST(groups_that_are_over_for_everybody_are_forgotten) {
  Stage stage(3);
  const auto leave = [&](int rank, size_t group) {
    stage.close_group(rank, group, "done");
    stage.run();
    stage.drop_group(rank, group);
  };
  size_t last = stage.add_group();
  for (int round = 0; round < 5; ++round) {
    leave(0, last);
    leave(1, last);
    // Rank 2 is still in it.
    const size_t next = stage.add_group();
    CHECK_EQ(stage.protocol(0).groups(), 3u);
    leave(2, last);
    last = stage.add_group();
    CHECK_EQ(stage.protocol(0).groups(), 3u);
    for (int rank = 0; rank < 3; ++rank) leave(rank, next);
  }
}

// Its user may still hold the group, and is then told that it is closed.
TEST(groups_that_are_held_are_remembered) {
  Stage stage(2);
  for (int rank = 0; rank < 2; ++rank) stage.close_group(rank, 0, "done");
  stage.run();
  stage.add_group();
  Buffer buffer(kSmall);
  const auto send = stage.post(0, plan_send(1, buffer.pieces()), {.op = OpKind::kSend});
  expect_cancelled(send, "the group was closed on this rank");
}

TEST(groups_of_lost_ranks_are_forgotten_too) {
  Stage stage(2);
  const size_t group = stage.add_group();
  stage.close_group(0, group, "done");
  stage.drop_group(0, group);
  stage.add_group();
  CHECK_EQ(stage.protocol(0).groups(), 3u);
  stage.link(0, 1).fail(Status::peer_lost("gone"));
  stage.add_group();
  CHECK_EQ(stage.protocol(0).groups(), 3u);
}

TEST(close_ends_the_own_operations) {
  Stage stage(2);
  Buffer out(kLarge), in(kLarge);
  const auto mine = stage.post(0, exchange(0, out, in), {});
  stage.run();
  stage.close_group(0, 0, "it was destroyed");
  expect_cancelled(mine, "rank 0: all_to_all #1 of group 'g0': it was destroyed");
  stage.run();
  // The peer calls it later.
  const auto theirs = stage.post(1, exchange(1, out, in), {});
  stage.run();
  expect_cancelled(theirs, "rank 0");
}

TEST(close_refuses_later_calls_here) {
  Stage stage(2);
  Buffer out(kSmall), in(kSmall);
  stage.close_group(0, 0, "it was destroyed");
  expect_cancelled(stage.post(0, exchange(0, out, in), {}), "the group was closed on this rank");
  expect_cancelled(stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend}),
                   "the group was closed on this rank");
}

TEST(close_refuses_later_calls_at_the_peer) {
  for (size_t bytes : {kSmall, kLarge}) {
    Stage stage(2);
    Buffer out(bytes), in(bytes);
    stage.close_group(0, 0, "it was destroyed");
    stage.run();
    const std::string_view why = "rank 0 left the group: it was destroyed";
    const Stage::Call broadcast{.op = OpKind::kBroadcast};
    expect_cancelled(stage.post(1, exchange(1, out, in), {}), why);
    expect_cancelled(stage.post(1, plan_send(0, out.pieces()), {.op = OpKind::kSend}), why);
    expect_cancelled(stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv}), why);
    expect_cancelled(stage.post(1, plan_broadcast(1, 2, 0, in.pieces()), broadcast), why);
  }
}

// What was sent before the rank left still counts, whenever the receiver calls.
TEST(close_does_not_take_back_what_was_sent) {
  for (const bool posted_before : {true, false}) {
    Stage stage(2);
    Buffer out(kSmall, 1), in(kSmall);
    Stage::Handle receive;
    const auto post = [&] {
      receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    };
    if (posted_before) post();
    CHECK(stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend})->done);
    stage.close_group(0, 0, "it was destroyed");
    if (!posted_before) {
      stage.run();
      post();
    }
    stage.run();
    CHECK(receive->done);
    CHECK_OK(receive->result.status);
    CHECK(in.bytes == out.bytes);
  }
}

// The faster rank is done and closes while the slower one has yet to take the last chunks.
TEST(close_right_after_completion_does_not_hurt_a_slower_peer) {
  Stage stage(2);
  Buffer out(10'000, 1), in(10'000);
  stage.link(0, 1).chunk_limit = 100;
  const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
  const auto send = stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend});
  stage.exchange_records();
  while (stage.step(0)) {
  }
  CHECK(send->done);
  CHECK(!receive->done);
  stage.close_group(0, 0, "it was destroyed");
  stage.exchange_records();
  CHECK(!receive->done);
  stage.run();
  CHECK(receive->done);
  CHECK_OK(receive->result.status);
  CHECK(in.bytes == out.bytes);
}

TEST(close_by_all_others_ends_a_receive_from_anyone) {
  for (const bool posted_first : {true, false}) {
    Stage stage(3);
    Buffer in(kSmall);
    Stage::Handle receive;
    const auto post = [&] {
      receive = stage.post(0, plan_receive(kAnySource, in.pieces()), {.op = OpKind::kRecv});
    };
    if (posted_first) post();
    stage.close_group(1, 0, "it was destroyed");
    stage.run();
    // Rank 2 may still send.
    if (posted_first) CHECK(!receive->done);
    // The process of rank 1 ends, as it may.
    stage.link(0, 1).fail(Status::peer_lost("process 4242 has ended"));
    stage.run();
    if (posted_first) CHECK(!receive->done);
    stage.close_group(2, 0, "it was destroyed");
    stage.run();
    if (!posted_first) post();
    expect_cancelled(receive, "rank 2 left the group: it was destroyed");
  }
}

TEST(close_gives_credits_back) {
  Stage stage(2);
  Buffer out(kSmall, 1), in(kSmall);
  for (uint32_t i = 0; i < Peer::kInlineCredits; ++i) {
    stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend, .tag = i});
  }
  stage.run();
  CHECK(!stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend})->done);
  stage.close_group(1, 0, "it was destroyed");
  stage.run();
  const size_t other = stage.add_group();
  CHECK(stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend, .group = other})->done);
}

TEST(close_all_ends_everything_once) {
  Stage stage(2);
  Buffer out(kLarge), in(kLarge);
  std::vector<Stage::Handle> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(stage.post(0, exchange(0, out, in), {}));
  handles.push_back(stage.post(0, plan_receive(kAnySource, in.pieces()), {.op = OpKind::kRecv}));
  stage.run();
  stage.protocol(0).close_all("the engine was shut down");
  CHECK_EQ(stage.protocol(0).take_finished().size(), handles.size());
  CHECK(stage.protocol(0).idle());
}

// ---- Giving one operation up -------------------------------------------------------------------

TEST(cancel_before_the_peer_calls) {
  for (size_t bytes : {kSmall, kLarge}) {
    Stage stage(2);
    Buffer out(bytes), in(bytes);
    const auto mine = stage.post(0, exchange(0, out, in), {.deadline = Deadline::at(1)});
    stage.run();
    stage.protocol(0).check_deadlines(now_ns());
    stage.run();
    CHECK(mine->done);
    CHECK_EQ(mine->code(), StatusCode::kTimedOut);
    expect_text(mine->text(), " Timed out after 0 ms waiting for rank 1 (it has not called it)");
    expect_cancelled(stage.post(1, exchange(1, out, in), {}), "rank 0 gave it up");
    expect_works(stage, 0);
  }
}

TEST(cancel_from_another_host_names_it) {
  Stage stage(2);
  stage.link(1, 0).near = false;
  Buffer out(kSmall), in(kSmall);
  stage.post(0, exchange(0, out, in), {.deadline = Deadline::at(1)});
  stage.run();
  stage.protocol(0).check_deadlines(now_ns());
  stage.run();
  expect_cancelled(stage.post(1, exchange(1, out, in), {}), "rank 0 (the fake peer) gave it up");
}

TEST(cancel_while_chunks_flow) {
  Stage stage(2);
  Buffer out0(kLarge, 1), in0(kLarge), out1(kLarge, 2), in1(kLarge);
  const auto mine = stage.post(0, exchange(0, out0, in0), {.deadline = Deadline::at(1)});
  const auto theirs = stage.post(1, exchange(1, out1, in1), {});
  for (int i = 0; i < 5; ++i) stage.step(i % 2);
  stage.protocol(0).check_deadlines(now_ns());
  stage.step(0);
  CHECK_EQ(mine->code(), StatusCode::kTimedOut);
  expect_text(mine->text(), "bytes arrived");
  // From here on the buffer is the user's again: chunks under way must not touch it.
  const std::vector<std::byte> mine_now = in0.bytes;
  stage.run();
  CHECK(in0.bytes == mine_now);
  expect_cancelled(theirs, "rank 0 gave it up");
  expect_works(stage, 0);
}

TEST(cancelled_send_leaves_the_receiver_waiting_for_another) {
  Stage stage(2);
  Buffer first(kLarge, 1), second(kLarge, 2), in(kLarge);
  const auto given_up = stage.post(0, plan_send(1, first.pieces()),
                                   {.op = OpKind::kSend, .deadline = Deadline::at(1)});
  stage.run();
  stage.protocol(0).check_deadlines(now_ns());
  stage.run();
  stage.step(0);
  CHECK_EQ(given_up->code(), StatusCode::kTimedOut);
  const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
  stage.run();
  CHECK(!receive->done);
  stage.post(0, plan_send(1, second.pieces()), {.op = OpKind::kSend});
  stage.run();
  CHECK(receive->done);
  CHECK(in.bytes == second.bytes);
}

// Three ranks: rank 2 has sent its small message and forgot; then rank 0 gives up. Ranks 1 and 2
// hear of it, rank 2 with its next collective.
TEST(late_failure_is_told_by_the_next_collective) {
  Stage stage(3);
  Buffer buffer(kSmall, 1);
  CHECK(stage.post(2, one_way(2, 3, 2, buffer), {})->done);
  Buffer wrong(kSmall + 1);
  const auto fails = stage.post(0, one_way(0, 3, 2, wrong), {});
  stage.run();
  CHECK_EQ(fails->code(), StatusCode::kMismatch);
  const auto next = stage.post(2, one_way(2, 3, 2, buffer), {});
  CHECK(next->done);
  // It goes well all the same.
  CHECK_OK(next->result.status);
  expect_text(next->result.late.message(),
              "the earlier collective #1 failed after it was done here: rank 0");
  CHECK_OK(stage.post(2, one_way(2, 3, 2, buffer), {})->result.late);
}

TEST(reject_tells_every_rank) {
  for (const bool posted_before : {true, false}) {
    Stage stage(2);
    Buffer out(kLarge), in(kLarge);
    Stage::Handle theirs;
    if (posted_before) theirs = stage.post(1, exchange(1, out, in), {});
    stage.run();
    const uint64_t sequence = stage.group(0).next_sequence();
    stage.reject(0, sequence, OpKind::kAllToAll, "rank 0: splits sum to 7, not 8");
    stage.run();
    if (!posted_before) theirs = stage.post(1, exchange(1, out, in), {});
    expect_cancelled(theirs, "splits sum to 7, not 8");
    expect_works(stage, 0);
  }
}

// ---- Reading a peer's memory -------------------------------------------------------------------

// Exchanges until the receiver has measured both ways often enough to read directly.
void teach_direct_reads(Stage& stage, size_t bytes) {
  stage.link(1, 0).pullable = true;
  for (int i = 0; i < 8; ++i) {
    Buffer out(bytes, i), in(bytes);
    const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend});
    stage.run();
    CHECK(receive->done);
    CHECK(in.bytes == out.bytes);
  }
  CHECK(!stage.link(1, 0).pulls.empty());
}

TEST(direct_read_of_a_buffer_that_was_given_up_is_not_trusted) {
  constexpr size_t kBytes = 1 << 20;
  Stage stage(2);
  teach_direct_reads(stage, kBytes);
  size_t begun = 0;
  for (int i = 0; i < 20; ++i) {
    Buffer out(kBytes, 1), in(kBytes);
    const size_t before = stage.link(1, 0).pulls.size();
    const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    const auto send = stage.post(0, plan_send(1, out.pieces()),
                                 {.op = OpKind::kSend, .deadline = Deadline::at(1)});
    stage.step(1);
    if (stage.link(1, 0).pulls.size() > before) ++begun;
    stage.protocol(0).check_deadlines(now_ns());
    // The user may write to it now.
    std::fill(out.bytes.begin(), out.bytes.end(), std::byte{0xee});
    for (int round = 0; round < 8; ++round) stage.protocol(1).move_chunks();
    stage.run();
    CHECK(receive->done);
    CHECK(!receive->result.status.ok());
  }
  CHECK_GE(begun, 1u);
}

// Another buffer was revoked: the message comes in chunks instead.
TEST(direct_read_survives_the_revocation_of_another_buffer) {
  constexpr size_t kBytes = 1 << 20;
  Stage stage(2);
  teach_direct_reads(stage, kBytes);
  for (int i = 0; i < 20; ++i) {
    Buffer out(kBytes, 1), in(kBytes);
    const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    const auto send = stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend});
    stage.step(1);
    stage.link(0, 1).revoke();
    stage.run();
    CHECK(send->done && receive->done);
    CHECK_OK(receive->result.status);
    CHECK(in.bytes == out.bytes);
  }
}

// ---- Lost links --------------------------------------------------------------------------------

TEST(lost_link_ends_what_needs_it_and_nothing_else) {
  Stage stage(3);
  Buffer out(kLarge), in(kLarge), from2(kLarge, 5), in2(kLarge);
  const auto needs_it = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
  const auto sends = stage.post(1, plan_send(0, out.pieces()), {.op = OpKind::kSend});
  const auto spared = stage.post(1, plan_receive(2, in2.pieces()), {.op = OpKind::kRecv});
  stage.run();
  stage.link(1, 0).fail(Status::peer_lost("process 4242 has died"));
  stage.run();
  stage.step(1);
  for (const auto& handle : {needs_it, sends}) {
    CHECK(handle->done);
    CHECK_EQ(handle->code(), StatusCode::kPeerLost);
    expect_text(handle->text(), "rank 0 is lost: process 4242 has died");
  }
  CHECK(!spared->done);
  stage.post(2, plan_send(1, from2.pieces()), {.op = OpKind::kSend});
  stage.run();
  CHECK(spared->done);
  CHECK(in2.bytes == from2.bytes);
}

// The peer gave a collective up, left, and ended, all before this rank came to that collective.
TEST(lost_link_gives_the_reason_its_peer_gave_before) {
  for (const bool gave_up : {true, false}) {
    Stage stage(2);
    Buffer out(kSmall), in(kSmall);
    if (gave_up) stage.reject(1, 1, OpKind::kAllToAll, "it ran out of memory");
    stage.close_group(1, 0, "it was destroyed");
    stage.link(0, 1).fail(Status::peer_lost("process 4242 closed its end"));
    const auto mine = stage.post(0, exchange(0, out, in), {});
    expect_cancelled(mine,
                     gave_up ? "it ran out of memory" : "rank 1 left the group: it was destroyed");
  }
}

TEST(lost_link_refuses_later_operations) {
  for (size_t bytes : {size_t{0}, kSmall, kLarge}) {
    Stage stage(2);
    Buffer out(bytes), in(bytes);
    stage.link(1, 0).fail(Status::peer_lost("process 4242 has died"));
    const Stage::Call broadcast{.op = OpKind::kBroadcast};
    for (const auto& handle : {
             stage.post(1, plan_send(0, out.pieces()), {.op = OpKind::kSend}),
             stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv}),
             stage.post(1, plan_broadcast(1, 2, 1, out.pieces()), broadcast),
             stage.post(1, plan_broadcast(1, 2, 0, in.pieces()), broadcast),
             stage.post(1, exchange(1, out, in), {}),
         }) {
      CHECK(handle->done);
      CHECK_EQ(handle->code(), StatusCode::kPeerLost);
      expect_text(handle->text(), "rank 0 is lost: process 4242 has died");
    }
  }
}

TEST(lost_link_still_delivers_what_was_sent) {
  for (size_t bytes : {size_t{0}, kSmall, size_t{9'000}}) {
    for (const bool posted_before : {true, false}) {
      if (bytes > Peer::kInlineBytes && !posted_before) continue;  // never granted
      Stage stage(2);
      stage.link(0, 1).chunk_limit = 100;
      Buffer out(bytes, 1), in(bytes);
      Stage::Handle receive;
      const auto post = [&] {
        receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
      };
      if (posted_before) post();
      const auto send = stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend});
      if (posted_before) stage.exchange_records();
      while (stage.step(0)) {
      }
      CHECK(send->done);
      stage.link(1, 0).fail(Status::peer_lost("closed its end"));
      if (!posted_before) post();
      stage.step(1);
      CHECK(receive->done);
      CHECK_OK(receive->result.status);
      CHECK(in.bytes == out.bytes);
    }
  }
}

TEST(loss_of_any_member_ends_a_receive_from_anyone) {
  for (const bool posted_first : {true, false}) {
    Stage stage(3);
    Buffer in(kSmall), out(kSmall, 1);
    Stage::Handle receive;
    const auto post = [&] {
      receive = stage.post(0, plan_receive(kAnySource, in.pieces()), {.op = OpKind::kRecv});
      stage.run();
    };
    // What a member sent before still counts.
    stage.post(2, plan_send(0, out.pieces()), {.op = OpKind::kSend});
    stage.run();
    if (posted_first) post();
    stage.link(0, 2).fail(Status::peer_lost("process 4242 has died"));
    stage.run();
    if (!posted_first) post();
    CHECK(receive->done);
    CHECK_OK(receive->result.status);
    CHECK(in.bytes == out.bytes);
    post();
    CHECK(receive->done);
    CHECK_EQ(receive->code(), StatusCode::kPeerLost);
    expect_text(receive->text(), {"rank 0: recv", "rank 2 is lost: process 4242 has died"});
  }
}

// ---- What losing a member means for the others -------------------------------------------------

// An all-to-all of three ranks, as rank `self` calls it.
struct Threesome {
  explicit Threesome(size_t bytes) {
    for (int rank = 0; rank < 3; ++rank) buffers.emplace_back(rank, 3, bytes);
  }
  Plan plan(int self) { return buffers[self].plan(self); }
  std::vector<Buffers> buffers;
};

// Rank 1 still reaches everybody, and is done with rank 0's part when that loses rank 2.
TEST(loss_of_a_member_ends_the_next_collectives_of_the_others) {
  for (const bool called_before : {true, false}) {
    Stage stage(3);
    const size_t other = stage.add_group();
    Threesome first(kSmall), second(kSmall);
    stage.link(2, 0).record_limit = 0;
    std::vector<Stage::Handle> calls;
    for (int rank = 0; rank < 3; ++rank) calls.push_back(stage.post(rank, first.plan(rank), {}));
    stage.run();
    CHECK(!calls[0]->done);
    CHECK(calls[1]->done);
    CHECK_OK(calls[1]->result.status);
    Stage::Handle next;
    if (called_before) next = stage.post(1, second.plan(1), {});
    stage.link(0, 2).fail(Status::peer_lost("process 4242 sent a broken header"));
    stage.run();
    CHECK(calls[0]->done);
    CHECK_EQ(calls[0]->code(), StatusCode::kPeerLost);
    if (!called_before) next = stage.post(1, second.plan(1), {});
    stage.close_group(0, 0, "it was destroyed");  // which explains less
    stage.run();
    for (const auto& handle : {next, stage.post(1, second.plan(1), {})}) {
      expect_cancelled(handle, "rank 1: all_to_all #");
      expect_text(handle->text(), {"rank 0 has lost a member: rank 0: all_to_all #1",
                                   "rank 2 is lost: process 4242 sent a broken header"});
    }
    expect_works(stage, other);
  }
}

TEST(loss_of_a_member_ends_own_collectives_that_need_the_others_only) {
  Stage stage(3);
  Threesome first(kSmall);
  Buffer buffer(kSmall);
  stage.post(0, first.plan(0), {});
  stage.link(0, 2).fail(Status::peer_lost("process 4242 has died"));
  stage.run();
  const auto own = stage.post(0, one_way(0, 2, 0, buffer), {});
  expect_cancelled(own, "this rank has lost a member: rank 0: all_to_all #1");
}

TEST(loss_of_a_member_spares_earlier_collectives_and_messages) {
  Stage stage(3);
  Threesome bulk(kLarge), small(kSmall);
  stage.link(0, 1).chunk_limit = stage.link(1, 0).chunk_limit = 0;
  std::vector<Stage::Handle> earlier, failing;
  for (int rank = 0; rank < 3; ++rank) earlier.push_back(stage.post(rank, bulk.plan(rank), {}));
  stage.run();
  for (int rank : {0, 1}) failing.push_back(stage.post(rank, small.plan(rank), {}));
  stage.run();
  stage.link(0, 2).fail(Status::peer_lost("process 4242 has died"));
  stage.run();
  for (const auto& handle : failing) {
    CHECK(handle->done);
    expect_text(handle->text(), {"all_to_all #2", "process 4242 has died"});
  }
  stage.link(0, 1).chunk_limit = stage.link(1, 0).chunk_limit = 4;
  stage.run();
  for (const auto& handle : earlier) {
    CHECK(handle->done);
    CHECK_OK(handle->result.status);
  }
  Buffer out(kLarge, 1), in(kLarge);
  stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend});
  const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
  stage.run();
  CHECK(receive->done);
  CHECK_OK(receive->result.status);
  CHECK(in.bytes == out.bytes);
}

}  // namespace
}  // namespace freescale::testing
