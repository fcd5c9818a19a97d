// How the protocol matches messages to operations, and what it says when they do not agree.

#include <cstring>
#include <functional>

#include "cpp/scheduler/layout.h"
#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/stage.h"

namespace freescale::testing {
namespace {

constexpr size_t kSmall = 100;     // travels with its header
constexpr size_t kLarge = 50'000;  // announced, granted, and sent in chunks

// ---- Disagreements -----------------------------------------------------------------------------

struct Side {
  Stage::Call call = {};
  size_t sends = 0;
  size_t awaits = 0;
  std::vector<std::string_view> says = {};  // must stand in the messages of both ranks
};

// Posts both sides in every order and checks that both ranks fail with both values.
void expect_mismatch(Side left, Side right) {
  for (const int order : {0, 1, 2}) {
    Stage stage(2);
    const size_t other_group = stage.add_group();
    Buffer out0(left.sends), in0(left.awaits), out1(right.sends), in1(right.awaits);
    Stage::Handle handles[2];
    const auto post = [&](int rank) {
      handles[rank] = rank == 0 ? stage.post(0, exchange(0, out0, in0), left.call)
                                : stage.post(1, exchange(1, out1, in1), right.call);
    };
    post(order == 1 ? 1 : 0);
    if (order != 2) stage.run();
    post(order == 1 ? 0 : 1);
    const std::vector<std::byte> before[] = {in0.bytes, in1.bytes};
    stage.run();
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(handles[rank]->done);
      const StatusCode code = handles[rank]->code();
      CHECK(code == StatusCode::kMismatch || code == StatusCode::kCancelled);
      const std::string& text = handles[rank]->text();
      expect_text(text, {"rank 0", "rank 1", "#1 of group 'g0'"});
      for (const auto* side : {&left, &right}) {
        for (const std::string_view part : side->says) expect_text(text, {part});
      }
    }
    CHECK(handles[0]->code() == StatusCode::kMismatch ||
          handles[1]->code() == StatusCode::kMismatch);
    // Not a byte has landed.
    CHECK(in0.bytes == before[0]);
    CHECK(in1.bytes == before[1]);
    expect_works(stage, other_group);
    expect_works(stage, 0);
  }
}

TEST(mismatch_of_operations) {
  for (size_t bytes : {size_t{0}, kSmall, kLarge}) {
    expect_mismatch({{.op = OpKind::kAllToAll}, bytes, bytes, {"called all_to_all"}},
                    {{.op = OpKind::kAllGather}, bytes, bytes, {"called all_gather"}});
  }
}

TEST(mismatch_of_dtypes) {
  for (size_t bytes : {size_t{0}, kSmall, kLarge}) {
    expect_mismatch({{.dtype = "float32"}, bytes, bytes, {"float32"}},
                    {{.dtype = "bfloat16"}, bytes, bytes, {"bfloat16"}});
  }
}

TEST(mismatch_of_dtype_names_that_fill_their_field) {
  expect_mismatch({{.dtype = "float8_e4m3fnuz_"}, kSmall, kSmall, {"float8_e4m3fnuz_"}},
                  {{.dtype = "float8_e5m2fnuz_"}, kSmall, kSmall, {"float8_e5m2fnuz_"}});
}

TEST(mismatch_of_layouts) {
  for (size_t bytes : {size_t{0}, kSmall, kLarge}) {
    expect_mismatch({{.layout = Layout{.root = 1}.pack()}, bytes, bytes, {"gave root 1"}},
                    {{.layout = Layout{.root = 2}.pack()}, bytes, bytes, {"gave root 2"}});
  }
}

TEST(mismatch_of_sizes) {
  const size_t sizes[] = {0, kSmall, kSmall + 1, kLarge, kLarge + 1};
  for (size_t sent : sizes) {
    for (size_t awaited : sizes) {
      if (sent == awaited) continue;
      const std::string sends = "sends " + std::to_string(sent) + " bytes";
      const std::string expects = "expects " + std::to_string(awaited) + " bytes";
      expect_mismatch({{}, sent, kSmall, {sends}}, {{}, kSmall, awaited, {expects}});
      expect_mismatch({{}, kLarge, awaited, {expects}}, {{}, sent, kLarge, {sends}});
    }
  }
}

TEST(mismatch_of_point_to_point_sizes) {
  for (size_t sent : {kSmall, kLarge}) {
    Stage stage(2);
    Buffer out(sent), in(sent + 1);
    const auto send = stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend, .tag = 3});
    const auto receive =
        stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv, .tag = 3});
    stage.run();
    const std::string sends = "sends " + std::to_string(sent);
    const std::string expects = "expects " + std::to_string(sent + 1);
    CHECK_EQ(receive->code(), StatusCode::kMismatch);
    expect_text(receive->text(), {"rank 1: recv with tag 3", sends, expects});
    CHECK(send->done);
    if (sent == kSmall) continue;  // it went with its header, and the send was over
    CHECK_EQ(send->code(), StatusCode::kCancelled);
    expect_text(send->text(), {"rank 0: send with tag 3", sends, expects});
  }
}

// A collective in which one rank takes part in another way: it sends where the other awaits none.
TEST(mismatch_of_direction) {
  Stage stage(2);
  Buffer buffer(kSmall), out(kSmall), in(kSmall);
  const auto a = stage.post(0, one_way(0, 2, 1, buffer), {});
  const auto b = stage.post(1, exchange(1, out, in), {});
  stage.run();
  CHECK(a->done && b->done);
  CHECK(!a->result.status.ok() || !b->result.status.ok());
  expect_text(a->text(), {"100 bytes", "no message"});
  expect_text(b->text(), {"100 bytes", "no message"});
}

// ---- Different roots ---------------------------------------------------------------------------

// Each takes itself for the root, or each takes the other for it: both learn of it at once, whether
// data was on its way or each waited for the other.
TEST(different_roots_fail_at_once) {
  using Builder = std::function<Plan(int self, int root, Buffer& buffer)>;
  const auto per_rank = [](Buffer& buffer) { return std::vector<Pieces>(2, buffer.pieces()); };
  const std::pair<OpKind, Builder> builders[] = {
      {OpKind::kBroadcast,
       [](int self, int root, Buffer& b) { return plan_broadcast(self, 2, root, b.pieces()); }},
      {OpKind::kScatter,
       [&](int self, int root, Buffer& b) {
         return plan_scatter(self, root, per_rank(b), b.pieces());
       }},
      {OpKind::kGather, [&](int self, int root, Buffer& b) {
         return plan_gather(self, root, b.pieces(), per_rank(b));
       }}};
  for (const auto& [op, build] : builders) {
    for (const size_t bytes : {size_t{0}, kSmall, kLarge}) {
      for (const bool itself : {true, false}) {
        Stage stage(2);
        Stage::Handle handles[2];
        Buffer buffers[] = {Buffer(bytes, 1), Buffer(bytes, 2)};
        for (int rank = 0; rank < 2; ++rank) {
          const int root = itself ? rank : 1 - rank;
          handles[rank] = stage.post(rank, build(rank, root, buffers[rank]),
                                     {.op = op, .layout = Layout{.root = root}.pack()});
        }
        stage.run();
        for (const auto& handle : handles) {
          CHECK(handle->done);
          expect_text(handle->text(), {op_name(op), "#1", "gave root 0", "gave root 1"});
        }
        CHECK(buffers[0].bytes == Buffer(bytes, 1).bytes);
        expect_works(stage, 0);
      }
    }
  }
}

// ---- Late failures -----------------------------------------------------------------------------

// A collective may be over for a rank before a peer finds fault with its message. The rank's next
// collective says so, once, and is not harmed.
TEST(a_late_failure_is_told_once_and_harms_nothing) {
  for (const bool together : {true, false}) {
    Stage stage(2);
    const size_t other_group = stage.add_group();
    Buffer left(kSmall), right(kSmall), out(kSmall), in(kSmall);
    const auto a = stage.post(0, one_way(0, 2, 0, left), {});
    if (!together) stage.run();
    const auto b = stage.post(1, one_way(1, 2, 1, right), {});
    stage.run();
    CHECK(a->done && b->done);
    CHECK_OK(a->result.status);
    if (!together) expect_text(b->text(), {"rank 0 sent a message", "awaits none"});
    const bool told[] = {false, !b->result.status.ok()};
    Stage::Handle next[2];
    for (int rank = 0; rank < 2; ++rank) next[rank] = stage.post(rank, exchange(rank, out, in), {});
    stage.run();
    for (int rank = 0; rank < 2; ++rank) {
      CHECK(next[rank]->done);
      CHECK_OK(next[rank]->result.status);
      if (!told[rank]) expect_text(next[rank]->result.late.message(), {"earlier collective #1"});
    }
    for (int rank = 0; rank < 2; ++rank) next[rank] = stage.post(rank, exchange(rank, out, in), {});
    stage.run();
    for (int rank = 0; rank < 2; ++rank) {
      CHECK_OK(next[rank]->result.status);
      CHECK_OK(next[rank]->result.late);
    }
    expect_works(stage, other_group);
  }
}

// The sender of a small message may be in its next collective when the receiver finds a mismatch.
TEST(a_late_failure_is_told_by_the_collective_under_way) {
  Stage stage(2);
  Buffer sent(kSmall), wanted(kSmall + 1), out(kSmall), in(kSmall);
  const auto a = stage.post(0, one_way(0, 2, 0, sent), {});
  const auto next = stage.post(0, exchange(0, out, in), {});
  stage.run();
  CHECK_OK(a->result.status);
  CHECK(!next->done);
  const auto b = stage.post(1, one_way(1, 2, 0, wanted), {});
  stage.run();
  expect_text(b->text(), {"rank 1: all_to_all #1", "101 bytes"});
  CHECK(!next->done);
  stage.post(1, exchange(1, out, in), {});
  stage.run();
  CHECK(next->done);
  CHECK_OK(next->result.status);
  expect_text(next->result.late.message(), {"earlier collective #1", "101 bytes"});
}

// ---- Early messages ----------------------------------------------------------------------------

TEST(early_messages_wait_for_their_collective) {
  for (size_t bytes : {size_t{0}, kSmall, kLarge}) {
    Stage stage(3);
    std::vector<Buffer> buffers;
    for (int i = 0; i < 5; ++i) buffers.emplace_back(bytes, i);
    std::vector<Stage::Handle> handles;
    for (Buffer& buffer : buffers) {
      handles.push_back(
          stage.post(0, plan_broadcast(0, 3, 0, buffer.pieces()), {.op = OpKind::kBroadcast}));
      stage.run();
    }
    for (int i = 0; i < 5; ++i) {
      for (int rank : {2, 1}) {
        Buffer in(bytes, 99);
        const auto late =
            stage.post(rank, plan_broadcast(rank, 3, 0, in.pieces()), {.op = OpKind::kBroadcast});
        stage.run();
        CHECK(late->done);
        CHECK_OK(late->result.status);
        CHECK(in.bytes == buffers[i].bytes);
      }
      CHECK(handles[i]->done);
      CHECK_OK(handles[i]->result.status);
    }
  }
}

TEST(early_point_to_point_messages_are_told_apart_by_tag_group_and_order) {
  Stage stage(2);
  const size_t second = stage.add_group();
  std::vector<Buffer> sent;
  for (int i = 0; i < 8; ++i) sent.emplace_back(i % 2 == 0 ? kSmall : kLarge, i);
  for (int i = 0; i < 8; ++i) {
    const Stage::Call call{
        .op = OpKind::kSend, .group = i < 4 ? 0 : second, .tag = static_cast<uint32_t>(i % 4 / 2)};
    stage.post(0, plan_send(1, sent[i].pieces()), call);
  }
  stage.run();
  const auto receive = [&](size_t group, uint32_t tag, const Buffer& expected, int source) {
    Buffer in(expected.bytes.size(), 99);
    const auto handle = stage.post(1, plan_receive(source, in.pieces()),
                                   {.op = OpKind::kRecv, .group = group, .tag = tag});
    stage.run();
    CHECK(handle->done);
    CHECK_OK(handle->result.status);
    CHECK_EQ(handle->result.source, 0);
    CHECK(in.bytes == expected.bytes);
  };
  receive(second, 1, sent[6], 0);
  receive(second, 1, sent[7], kAnySource);
  receive(0, 1, sent[2], kAnySource);
  receive(0, 0, sent[0], 0);
  receive(0, 0, sent[1], 0);
  receive(second, 0, sent[4], 0);
  receive(0, 1, sent[3], 0);
  receive(second, 0, sent[5], kAnySource);
}

TEST(point_to_point_receive_waits_for_its_source) {
  Stage stage(3);
  Buffer from1(kSmall, 1), from2(kSmall, 2), in(kSmall);
  const auto receive = stage.post(0, plan_receive(2, in.pieces()), {.op = OpKind::kRecv});
  stage.post(1, plan_send(0, from1.pieces()), {.op = OpKind::kSend});
  stage.run();
  CHECK(!receive->done);
  stage.post(2, plan_send(0, from2.pieces()), {.op = OpKind::kSend});
  stage.run();
  CHECK(receive->done);
  CHECK(in.bytes == from2.bytes);
}

// ---- Inline credits ----------------------------------------------------------------------------

TEST(unposted_small_messages_are_bounded_and_do_not_block_others) {
  Stage stage(2);
  const size_t other_group = stage.add_group();
  std::vector<Buffer> sent;
  for (int i = 0; i < 200; ++i) sent.emplace_back(kSmall, i);
  std::vector<Stage::Handle> handles;
  for (Buffer& buffer : sent) {
    handles.push_back(stage.post(0, one_way(0, 2, 0, buffer), {}));
  }
  stage.run();
  size_t done = 0;
  for (const auto& handle : handles) done += handle->done ? 1 : 0;
  CHECK_EQ(done, Peer::kInlineCredits);

  expect_works(stage, other_group);

  for (Buffer& expected : sent) {
    Buffer in(kSmall, 99);
    const auto late = stage.post(1, one_way(1, 2, 0, in), {});
    stage.run();
    CHECK(late->done);
    CHECK_OK(late->result.status);
    CHECK(in.bytes == expected.bytes);
  }
  for (const auto& handle : handles) {
    CHECK(handle->done);
    CHECK_OK(handle->result.status);
  }
}

// What was reported as sent must reach the peer even if this rank never calls again.
TEST(small_messages_are_done_only_when_they_are_on_their_way) {
  Stage stage(2);
  stage.link(0, 1).record_limit = 4;
  std::vector<Buffer> sent;
  for (int i = 0; i < 20; ++i) sent.emplace_back(kSmall, i);
  size_t done = 0;
  for (Buffer& buffer : sent) {
    const auto handle = stage.post(0, one_way(0, 2, 0, buffer), {});
    if (handle->done) ++done;
    CHECK_LE(done, stage.link(0, 1).records_sent);
  }
  for (Buffer& expected : sent) {
    Buffer in(kSmall, 99);
    const auto late = stage.post(1, one_way(1, 2, 0, in), {});
    stage.run();
    CHECK(late->done);
    CHECK(in.bytes == expected.bytes);
  }
}

TEST(messages_travel_alone_when_records_are_smaller_than_they) {
  Stage stage(2);
  for (auto [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    stage.link(from, to).largest_record = 2500;
  }
  for (size_t bytes : {size_t{2000}, size_t{2400}, size_t{8000}}) {
    Buffer out0(bytes, 1), in0(bytes), out1(bytes, 2), in1(bytes);
    const auto a = stage.post(0, exchange(0, out0, in0), {});
    const auto b = stage.post(1, exchange(1, out1, in1), {});
    stage.run();
    CHECK(a->done && b->done);
    CHECK(in0.bytes == out1.bytes);
    CHECK(in1.bytes == out0.bytes);
  }
}

TEST(failed_collectives_give_their_credits_back) {
  Stage stage(2);
  const Stage::Call late{.op = OpKind::kAllToAll, .deadline = Deadline::at(1)};
  for (uint32_t i = 0; i < 3 * Peer::kInlineCredits; ++i) {
    Buffer out(kSmall), in(kSmall);
    const auto mine = stage.post(0, exchange(0, out, in), late);
    stage.run();
    stage.protocol(0).check_deadlines(now_ns());
    stage.run();
    const auto theirs = stage.post(1, exchange(1, out, in), {});
    stage.run();
    CHECK(theirs->done);
    CHECK_EQ(theirs->code(), StatusCode::kCancelled);
  }
  expect_works(stage, 0);
  Buffer buffer(kSmall);
  const auto small = stage.post(0, one_way(0, 2, 0, buffer), {});
  CHECK(small->done);  // so it travelled with its header
}

// ---- Parts of one collective -------------------------------------------------------------------

TEST(parts_of_a_collective_match_by_number_in_any_order) {
  Stage stage(2);
  Buffer a0(kSmall, 1), a1(kLarge, 2), b0(kSmall), b1(kLarge), none0(kSmall), none1(kLarge);
  const auto call = [](uint32_t part) { return Stage::Call{.sequence = 1, .part = part}; };
  stage.post(0, exchange(0, a0, none0), call(0));
  stage.post(0, exchange(0, a1, none1), call(1));
  stage.run();
  Buffer out0(kSmall, 3), out1(kLarge, 4);
  const auto second = stage.post(1, exchange(1, out1, b1), call(1));
  stage.run();
  CHECK(second->done);
  const auto first = stage.post(1, exchange(1, out0, b0), call(0));
  stage.run();
  CHECK(first->done);
  CHECK_OK(first->result.status);
  CHECK(b0.bytes == a0.bytes);
  CHECK(b1.bytes == a1.bytes);
}

TEST(part_of_a_collective_that_failed_before_is_refused) {
  Stage stage(2);
  Buffer out(kLarge), in(kLarge), other(kLarge + 1);
  const Stage::Call first{.sequence = 1, .part = 0};
  const auto left = stage.post(0, exchange(0, out, in), first);
  const auto right = stage.post(1, exchange(1, other, in), first);
  stage.run();
  CHECK(!left->result.status.ok() && !right->result.status.ok());
  for (int rank = 0; rank < 2; ++rank) {
    const auto late = stage.post(rank, exchange(rank, out, in), {.sequence = 1, .part = 1});
    CHECK(late->done);
    expect_text(late->text(), {"another part of it failed before"});
    stage.group(rank).next_sequence();
  }
  stage.run();
  expect_works(stage, 0);
}

TEST(failed_part_ends_the_whole_collective_on_both_ranks) {
  Stage stage(2);
  Buffer out(kLarge), in(kLarge), wrong(kLarge + 1);
  std::vector<Stage::Handle> handles;
  for (int rank = 0; rank < 2; ++rank) {
    Buffer& input = rank == 0 ? out : wrong;
    handles.push_back(stage.post(rank, exchange(rank, out, in), {.sequence = 1, .part = 0}));
    handles.push_back(stage.post(rank, exchange(rank, input, in), {.sequence = 1, .part = 1}));
  }
  stage.run();
  for (const auto& handle : handles) {
    CHECK(handle->done);
    CHECK(!handle->result.status.ok());
    expect_text(handle->text(), {"50001", "50000"});
  }
  for (int rank = 0; rank < 2; ++rank) stage.group(rank).next_sequence();
  expect_works(stage, 0);
}

// ---- Plans that make no sense ------------------------------------------------------------------

TEST(impossible_plans_are_refused_on_every_rank) {
  Buffer buffer(kSmall);
  const auto message = [&](int peer) { return Message{peer, buffer.pieces()}; };
  const Plan plans[] = {
      {{}, {message(2)}, {}},              // not in the group
      {{}, {message(-1)}, {}},             // kAnySource is no destination
      {{}, {}, {message(1), message(1)}},  // two from one rank
      {{}, {message(0)}, {}},              // to itself, not received
      {{}, {}, {message(0)}},
  };
  for (const Plan& plan : plans) {
    Stage stage(2);
    Buffer out(kLarge), in(kLarge);
    const auto bad = stage.post(0, plan, {});
    CHECK(bad->done);
    CHECK_EQ(bad->code(), StatusCode::kInvalidArgument);
    const auto good = stage.post(1, exchange(1, out, in), {});
    stage.run();
    CHECK(good->done);
    expect_text(good->text(), {"rank 0 gave it up"});
    expect_works(stage, 0);
  }
}

TEST(receive_from_the_own_rank_is_refused) {
  for (size_t bytes : {size_t{0}, kSmall}) {
    Stage stage(2);
    Buffer in(bytes);
    const auto receive = stage.post(0, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    CHECK(receive->done);
    CHECK_EQ(receive->code(), StatusCode::kInvalidArgument);
  }
}

// ---- Broken records ----------------------------------------------------------------------------

void send_raw(Stage& stage, const WireHeader& header, size_t length, size_t payload = 0) {
  std::vector<std::byte> record(length + payload);
  if (length > 0) std::memcpy(record.data(), &header, std::min(length, sizeof(header)));
  CHECK(stage.link(0, 1).try_send(record, {}));
  stage.exchange_records();
}

TEST(broken_records_fail_their_link_alone) {
  WireHeader wrong_magic;
  wrong_magic.magic = 7;
  WireHeader unknown;
  unknown.kind = static_cast<RecordKind>(99);
  WireHeader cut;
  cut.bytes = 50;
  const struct {
    WireHeader header;
    size_t length;
    const char* says;
  } broken[] = {
      {{}, 0, "short record"},
      {{}, sizeof(WireHeader) - 1, "short record"},
      {wrong_magic, sizeof(WireHeader), "broken header"},
      {unknown, sizeof(WireHeader), "unknown record"},
      {cut, sizeof(WireHeader) + 49, "cut message"},
  };
  for (const auto& one : broken) {
    Stage stage(3);
    Buffer in(kLarge), from2(kLarge, 5), in2(kLarge);
    const auto hit = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    const auto spared = stage.post(1, plan_receive(2, in2.pieces()), {.op = OpKind::kRecv});
    send_raw(stage, one.header, one.length);
    CHECK(hit->done);
    CHECK_EQ(hit->code(), StatusCode::kPeerLost);
    expect_text(hit->text(), {"rank 0 is lost", one.says});
    CHECK(!spared->done);
    stage.post(2, plan_send(1, from2.pieces()), {.op = OpKind::kSend});
    stage.run();
    CHECK(spared->done);
    CHECK(in2.bytes == from2.bytes);
  }
}

// Records that are whole but senseless: nothing may crash, hang or touch a buffer.
TEST(senseless_records_are_survived) {
  for (uint8_t kind = 1; kind <= static_cast<uint8_t>(RecordKind::kGroupClosed); ++kind) {
    for (const uint64_t number : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
      for (const bool point_to_point : {false, true}) {
        Stage stage(2);
        Buffer out(kLarge, 1), in(kLarge, 2);
        const std::vector<std::byte> before = in.bytes;
        stage.post(1, exchange(1, out, in), {});
        WireHeader header;
        header.kind = static_cast<RecordKind>(kind);
        header.op = 255;
        header.priority = 127;
        header.point_to_point = point_to_point ? 1 : 0;
        header.group = 1000;
        header.sequence = number;
        header.token = number;
        header.peer_token = number;
        header.bytes = header.kind == RecordKind::kInline ? 10 : number;
        header.bytes_back = number;
        header.sender = static_cast<int32_t>(number);
        header.inline_taken = static_cast<uint32_t>(number);
        header.dtype.fill('x');
        send_raw(stage, header, sizeof(header), 10);
        stage.run();
        CHECK(in.bytes == before);
      }
    }
  }
}

TEST(senseless_chunks_are_dropped) {
  Stage stage(2);
  Buffer out(kLarge, 1), in(kLarge, 2), sent(kLarge, 3);
  const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
  std::vector<std::byte> data(900);
  const Segment piece{data.data(), data.size()};
  const uint64_t tokens[] = {0, 1, 77};
  for (const uint64_t token : tokens) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{kLarge - 899}, ~uint64_t{0} - 10}) {
      CHECK(stage.link(0, 1).try_put(0, {token, offset}, std::span(&piece, 1)));
      stage.run();
    }
  }
  CHECK(!receive->done);
  CHECK(in.bytes == Buffer(kLarge, 2).bytes);
  stage.post(0, plan_send(1, sent.pieces()), {.op = OpKind::kSend});
  stage.exchange_records();
  // Granted now.
  stage.run();
  CHECK(receive->done);
  CHECK(in.bytes == sent.bytes);
}

// Beyond the message's end, by offsets that wrap round, or more in all than it has bytes.
TEST(chunks_that_do_not_fit_their_message_fail_the_link) {
  const struct {
    uint64_t offset;
    int times;
  } senseless[] = {{kLarge - 899, 1}, {~uint64_t{0} - 10, 1}, {0, kLarge / 900 + 1}};
  for (const auto& one : senseless) {
    Stage stage(2);
    Buffer in(kLarge, 2), sent(kLarge, 3);
    const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    stage.post(0, plan_send(1, sent.pieces()), {.op = OpKind::kSend});
    stage.exchange_records();
    std::vector<std::byte> data(900);
    const Segment piece{data.data(), data.size()};
    for (int i = 0; i < one.times; ++i) {
      CHECK(!receive->done);
      CHECK(stage.link(0, 1).try_put(0, {1, one.offset}, std::span(&piece, 1)));
      stage.step(1);
    }
    stage.run();
    CHECK(receive->done);
    CHECK_EQ(receive->code(), StatusCode::kPeerLost);
    expect_text(receive->text(), {"rank 0 is lost", "sent more than its message holds"});
  }
}

// A record names the rank that sends it: nobody may speak for another.
TEST(records_in_the_name_of_another_rank_fail_the_link) {
  for (const int32_t claimed : {2, 1, 3, -1}) {
    for (const RecordKind kind : {RecordKind::kAnnounce, RecordKind::kGroupClosed}) {
      Stage stage(3);
      Buffer in(kLarge), in2(kLarge);
      const auto hit = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
      const auto spared = stage.post(1, plan_receive(2, in2.pieces()), {.op = OpKind::kRecv});
      WireHeader header;
      header.kind = kind;
      header.group = stage.group(1).id();
      header.point_to_point = 1;
      header.sender = claimed;
      send_raw(stage, header, sizeof(header));
      CHECK(hit->done);
      expect_text(hit->text(), {"rank 0 is lost", "of rank " + std::to_string(claimed)});
      CHECK(!spared->done);
    }
  }
}

// The same before this rank has joined the group.
TEST(early_messages_in_the_name_of_another_rank_fail_the_link) {
  for (const uint8_t point_to_point : {0, 1}) {
    Stage stage(3);
    WireHeader header;
    header.kind = RecordKind::kAnnounce;
    header.group = stage.group(1).id() + 1;  // the next one
    header.point_to_point = point_to_point;
    header.sender = 2;
    send_raw(stage, header, sizeof(header));
    CHECK(!stage.link(1, 0).failed());
    stage.add_group();
    CHECK(stage.link(1, 0).failed());
    expect_text(stage.link(1, 0).failure().message(), {"sent a message of rank 2"});
  }
}

}  // namespace
}  // namespace freescale::testing
