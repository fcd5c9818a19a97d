// What a rank's protocol does with the records about messages in device memory, whoever moves them:
// news that come in an unlucky order, and those of a rank that sends nonsense. Memory is that of
// the host here, which must not be touched all the same.

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpp/scheduler/wire.h"
#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/ranks.h"
#include "tests/cpp/stage.h"

namespace freescale::testing {
namespace {

constexpr size_t kBytes = 20'000;

// A transfer whose state is what the test says.
class FakeTransfer : public DeviceTransfer {
 public:
  std::function<State()> on_state = [] { return State::kSubmitted; };
  std::function<bool()> on_peer_has_come = [] { return true; };
  bool abandoned = false;
  // Once it is abandoned, a copy may still come until the peer is lost.
  bool keeps_memory = false;
  bool lost = false;

  State state() override {
    if (!abandoned) return on_state();
    return keeps_memory && !lost ? State::kWaiting : State::kOver;
  }
  Status failure() const override { return Status::system("the fake device failed"); }
  bool needs_peer() override { return true; }
  bool peer_has_come() override { return on_peer_has_come(); }
  bool take_news(std::vector<std::byte>*) override { return false; }
  Status on_news(std::span<const std::byte> news) override {
    return news.size() == 1 ? Status() : Status::invalid_argument("sent broken news");
  }
  void abandon() override { abandoned = true; }
  void lose_peer() override { lost = true; }
  bool staged() const override { return false; }
};

class FakeCall : public DeviceCall {
 public:
  std::shared_ptr<FakeTransfer> in = std::make_shared<FakeTransfer>();
  std::shared_ptr<FakeTransfer> out = std::make_shared<FakeTransfer>();
  size_t grant_bytes = 7;
  // On the way to and from another host.
  Buffer stage_of_out{kBytes, 2};
  Buffer stage_of_in{kBytes, 3};
  bool staged_in = false;
  bool may_go = false;

  Result<std::shared_ptr<DeviceTransfer>> receive(Link&, std::vector<std::byte>* grant) override {
    grant->assign(grant_bytes, std::byte{1});
    return std::shared_ptr<DeviceTransfer>(in);
  }
  Result<std::shared_ptr<DeviceTransfer>> send(Link&, int,
                                               std::span<const std::byte> grant) override {
    if (grant.size() != grant_bytes) return Status::invalid_argument("too short");
    return std::shared_ptr<DeviceTransfer>(out);
  }
  Result<std::shared_ptr<DeviceTransfer>> copy(int) override {
    return Status::invalid_argument("no copy");
  }
  Result<std::shared_ptr<DeviceTransfer>> stage_out(Link&, int,
                                                    std::vector<Segment>* memory) override {
    *memory = stage_of_out.pieces();
    return std::shared_ptr<DeviceTransfer>(out);
  }
  Result<std::shared_ptr<DeviceTransfer>> stage_in(Link&, int,
                                                   std::vector<Segment>* memory) override {
    *memory = stage_of_in.pieces();
    staged_in = true;
    return std::shared_ptr<DeviceTransfer>(in);
  }
  void stage_in_may_go(Link&) override { may_go = true; }
  void pace(Nanoseconds) override {}
  void give_up() override {}
};

// Rank 0 receives from rank 1 and sends to it, which the test plays by hand.
class DeviceMatching {
 public:
  DeviceMatching() {
    handle = post(0, true);
    stage.exchange_records();
  }

  // One side of an exchange between the two.
  Stage::Handle post(int rank, bool on_device) {
    Stage::Call how;
    how.op = OpKind::kAllToAll;
    if (on_device) how.device = &device;
    return stage.post(rank, exchange(rank, out, in), how);
  }

  WireHeader header(RecordKind kind, uint64_t bytes = kBytes) {
    WireHeader header;
    header.kind = kind;
    header.op = static_cast<uint8_t>(OpKind::kAllToAll);
    header.group = stage.group(0).id();
    header.sequence = 1;
    header.bytes = header.bytes_back = bytes;
    header.token = 99;
    header.peer_token = 1;
    header.sender = 1;
    std::memcpy(header.dtype.data(), "uint8", sizeof("uint8"));
    return header;
  }
  void say(const WireHeader& header, size_t payload = 0) {
    const auto head = std::as_bytes(std::span(&header, 1));
    std::vector<std::byte> record(head.begin(), head.end());
    record.resize(record.size() + payload);
    CHECK(stage.link(1, 0).try_send(record, {}));
  }
  void run() {
    for (int i = 0; i < 10; ++i) static_cast<void>(stage.step(0));
  }
  void expect_distrust(std::string_view why) {
    run();
    CHECK(handle->done);
    expect_text(handle->text(), {"rank 1", why});
    CHECK(in.bytes == Buffer(kBytes, 1).bytes);
  }
  // The operation has failed, and its memory is not let go of yet.
  void fail_and_keep_memory() {
    say(header(RecordKind::kAnnounceDevice));
    run();
    call->in->keeps_memory = true;
    stage.close_group(0, 0, "enough of it");
    run();
    CHECK(handle->done);
    CHECK(!stage.protocol(0).idle());
  }

  std::shared_ptr<FakeCall> call = std::make_shared<FakeCall>();
  std::shared_ptr<DeviceCall> device = call;
  Buffer out{kBytes, 0};
  Buffer in{kBytes, 1};
  Stage stage{2};
  Stage::Handle handle;
};

// The sender gives its message up, and then lets go of its copy: the receiver, in the middle of its
// round, sees the end of the copy first, in the first or the second look of that round.
TEST(what_a_sender_has_given_up_does_not_arrive) {
  for (int look : {1, 2}) {
    DeviceMatching pair;
    pair.say(pair.header(RecordKind::kGrant), 7);
    pair.call->out->on_state = [] { return DeviceTransfer::State::kOver; };
    pair.say(pair.header(RecordKind::kAnnounceDevice));
    pair.run();
    CHECK(!pair.handle->done);
    pair.call->in->on_state = [&pair, look, looks = 0]() mutable {
      if (++looks < look) return DeviceTransfer::State::kSubmitted;
      if (looks == look) pair.say(pair.header(RecordKind::kCancel));
      return DeviceTransfer::State::kOver;
    };
    pair.run();
    CHECK(pair.handle->done);
    CHECK(pair.handle->code() == StatusCode::kCancelled);
  }
}

TEST(a_message_that_arrives_ends_its_operation) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kGrant), 7);
  pair.say(pair.header(RecordKind::kAnnounceDevice));
  pair.call->in->on_state = pair.call->out->on_state = [] { return DeviceTransfer::State::kOver; };
  pair.run();
  CHECK(pair.handle->done);
  CHECK(pair.handle->result.status.ok());
}

// Its host may have called long before.
TEST(readiness_is_when_the_stream_of_the_last_rank_had_come) {
  DeviceMatching pair;
  pair.call->out->on_peer_has_come = [] { return false; };
  pair.say(pair.header(RecordKind::kGrant), 7);
  pair.say(pair.header(RecordKind::kAnnounceDevice));
  pair.run();
  const Nanoseconds before = now_ns();
  pair.call->out->on_peer_has_come = [] { return true; };
  pair.run();
  const Nanoseconds after = now_ns();
  pair.call->in->on_state = pair.call->out->on_state = [] { return DeviceTransfer::State::kOver; };
  pair.run();
  CHECK(pair.handle->done);
  CHECK_GE(pair.handle->result.ready, before);
  CHECK_LE(pair.handle->result.ready, after);
}

// Who is not known to be missing is not waited for: until then the copy is not submitted.
TEST(readiness_of_a_stream_that_was_there_at_the_first_look) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kGrant), 7);
  pair.say(pair.header(RecordKind::kAnnounceDevice));
  pair.call->out->on_peer_has_come = [] { return false; };
  pair.call->out->on_state = [] { return DeviceTransfer::State::kWaiting; };
  pair.run();
  const Nanoseconds before = now_ns();
  pair.call->out->on_peer_has_come = [] { return true; };
  pair.call->in->on_state = pair.call->out->on_state = [] { return DeviceTransfer::State::kOver; };
  pair.run();
  CHECK(pair.handle->done);
  CHECK_LT(pair.handle->result.ready, before);
}

TEST(a_grant_that_makes_no_sense_costs_the_link) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kGrant), 3);
  pair.expect_distrust("a grant that makes no sense: too short");
}

// It keeps the memory until it hears that nothing comes.
TEST(a_grant_for_an_operation_that_is_over_is_answered) {
  DeviceMatching pair;
  pair.stage.close_group(0, 0, "enough of it");
  const size_t said = pair.stage.link(0, 1).records_sent;
  pair.say(pair.header(RecordKind::kGrant), 7);
  pair.run();
  CHECK_EQ(pair.stage.link(0, 1).records_sent, said + 1);
}

TEST(memory_that_does_not_fit_into_a_grant_is_an_error) {
  DeviceMatching pair;
  pair.call->grant_bytes = pair.stage.link(0, 1).largest_record + 1;
  pair.say(pair.header(RecordKind::kAnnounceDevice));
  pair.run();
  CHECK(pair.handle->done);
  expect_text(pair.handle->text(), {"rank 1", "lies in too many allocations"});
}

// Nobody else would say that nothing comes.
TEST(memory_of_a_failed_message_is_let_go_of_when_its_sender_is_lost) {
  DeviceMatching pair;
  pair.fail_and_keep_memory();
  pair.stage.link(0, 1).fail(Status::peer_lost("the fake peer has ended"));
  pair.run();
  CHECK(pair.stage.protocol(0).idle());
}

// In a process of its own, which ends without a search for memory that nobody has.
TEST(memory_that_a_copy_may_still_touch_outlives_the_engine) {
  ChildProcess([] {
    std::weak_ptr<DeviceCall> kept;
    {
      DeviceMatching pair;
      kept = pair.device;
      pair.fail_and_keep_memory();
      pair.stage.protocol(0).keep_leftovers_for_ever();
    }
    CHECK(!kept.expired());
  }).expect_success();
}

TEST(news_that_make_no_sense_cost_the_link) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kAnnounceDevice));
  pair.say(pair.header(RecordKind::kDeviceNews), 3);
  pair.expect_distrust("sent broken news");
}

TEST(a_reply_that_makes_no_sense_costs_the_link) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kGrant), 7);
  pair.say(pair.header(RecordKind::kDeviceReply), 3);
  pair.expect_distrust("sent broken news");
}

TEST(chunks_for_a_message_in_device_memory_cost_the_link) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kAnnounceDevice));
  pair.run();
  std::vector<std::byte> data(100, std::byte{7});
  const Segment piece{data.data(), data.size()};
  CHECK(pair.stage.link(1, 0).try_put(0, {1, 0}, std::span(&piece, 1)));
  pair.expect_distrust("sent bytes of a message in device memory");
}

TEST(who_claims_to_have_read_device_memory_loses_the_link) {
  DeviceMatching pair;
  pair.say(pair.header(RecordKind::kPulled));
  pair.expect_distrust("read a message in device memory");
}

// Whatever memory the receiver has.
TEST(an_announcement_of_nothing_in_device_memory_costs_the_link) {
  for (bool on_device : {true, false}) {
    DeviceMatching pair;
    Buffer none{0, 0};
    Stage::Call how;
    how.op = OpKind::kAllToAll;
    how.sequence = 2;
    if (on_device) how.device = &pair.device;
    const auto empty = pair.stage.post(0, exchange(0, none, none), how);
    WireHeader header = pair.header(RecordKind::kAnnounceDevice, 0);
    header.sequence = 2;
    pair.say(header);
    pair.run();
    CHECK(empty->done);
    expect_text(empty->text(), "announced nothing in device memory");
  }
}

// ---- Other hosts --------------------------------------------------------------------------------

// Rank 0 has its memory in a device, and rank 1, of another host, in its host's.
class BetweenHosts {
 public:
  // Chunks for rank 0 stay on their way until let_chunks_through().
  explicit BetweenHosts(size_t bytes_of_other = kBytes)
      : other_out(bytes_of_other, 4), other_in(bytes_of_other, 5) {
    stage.link(0, 1).near = stage.link(1, 0).near = false;
    stage.link(1, 0).chunk_limit = 0;
    call->out->on_state = [this] { return out_state; };
    call->in->on_state = [this] { return in_state; };
    Stage::Call how;
    how.device = &device;
    handle = stage.post(0, exchange(0, out, in), how);
    stage.run();
    other = stage.post(1, exchange(1, other_out, other_in), {});
    stage.run();
  }

  void let_chunks_through() {
    stage.link(1, 0).chunk_limit = 4;
    stage.run();
  }

  using State = DeviceTransfer::State;
  State out_state = State::kSubmitted;
  State in_state = State::kSubmitted;
  std::shared_ptr<FakeCall> call = std::make_shared<FakeCall>();
  std::shared_ptr<DeviceCall> device = call;
  Buffer out{kBytes, 0};
  Buffer in{kBytes, 1};
  Buffer other_out;
  Buffer other_in;
  Stage stage{2};
  Stage::Handle handle;
  Stage::Handle other;
};

TEST(a_message_to_another_host_is_sent_once_it_is_out_of_the_device) {
  BetweenHosts hosts;
  CHECK(hosts.call->staged_in);  // both have called it, which is told at once
  CHECK(hosts.other_in.bytes == Buffer(kBytes, 5).bytes);
  hosts.out_state = DeviceTransfer::State::kOver;
  hosts.let_chunks_through();
  CHECK(hosts.other->done);
  CHECK(hosts.other_in.bytes == hosts.call->stage_of_out.bytes);
  CHECK(!hosts.handle->done);
}

TEST(a_message_from_another_host_goes_into_the_device_once_it_is_there) {
  BetweenHosts hosts;
  hosts.out_state = DeviceTransfer::State::kOver;
  hosts.stage.run();
  CHECK(hosts.call->staged_in);
  CHECK(!hosts.call->may_go);
  hosts.let_chunks_through();
  CHECK(hosts.call->may_go);
  CHECK(hosts.call->stage_of_in.bytes == hosts.other_out.bytes);
  CHECK(hosts.in.bytes == Buffer(kBytes, 1).bytes);
  CHECK(!hosts.handle->done);
  hosts.in_state = DeviceTransfer::State::kOver;
  hosts.stage.run();
  CHECK(hosts.handle->done);
  CHECK(hosts.handle->result.status.ok());
}

// What is submitted moves, even if its message is given up.
TEST(nothing_goes_into_the_device_before_the_ranks_agree) {
  BetweenHosts hosts(kBytes - 1);
  hosts.out_state = DeviceTransfer::State::kOver;
  hosts.stage.run();
  CHECK(hosts.handle->done && hosts.other->done);
  expect_text(hosts.handle->text(), {"rank 1", "19999 bytes", "20000 bytes"});
  CHECK(!hosts.call->staged_in);
}

TEST(a_message_that_came_from_another_host_does_not_need_it_any_more) {
  for (bool all_came : {false, true}) {
    BetweenHosts hosts;
    hosts.out_state = DeviceTransfer::State::kOver;
    if (all_came) hosts.let_chunks_through();
    hosts.stage.run();
    hosts.stage.link(0, 1).fail(Status::peer_lost("its host is gone"));
    hosts.stage.run();
    CHECK_EQ(hosts.handle->done, !all_came);
    hosts.in_state = DeviceTransfer::State::kOver;
    hosts.stage.run();
    CHECK(hosts.handle->done);
    CHECK_EQ(hosts.handle->result.status.ok(), all_came);
  }
}

}  // namespace
}  // namespace freescale::testing
