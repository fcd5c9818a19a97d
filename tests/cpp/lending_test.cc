// Links that read what was put for a while, as those over the network do: when an operation is
// over, and how long its memory lasts.

#include <memory>
#include <string>

#include "tests/cpp/check.h"
#include "tests/cpp/stage.h"

namespace freescale::testing {
namespace {

constexpr uint64_t kChunks = 10;
constexpr size_t kBytes = kChunks * 1000;  // those of FakeLink

// Rank 0 sends to rank 1, until nothing moves any more: the link takes `puts` chunks, and has read
// `read` of them by then.
struct Sending {
  explicit Sending(uint64_t read, size_t puts = kChunks) : stage(2), out(kBytes, 1), in(kBytes) {
    stage.link(0, 1).read = read;
    stage.link(0, 1).shared_puts = &puts_left;
    puts_left = puts;
    std::shared_ptr<const void> memory = std::make_shared<int>();
    lent = memory;
    send = stage.post(0, plan_send(1, out.pieces()), {.op = OpKind::kSend, .memory = &memory});
    const auto receive = stage.post(1, plan_receive(0, in.pieces()), {.op = OpKind::kRecv});
    memory.reset();
    stage.run();
    CHECK_EQ(receive->done, puts >= kChunks);
  }
  void fail() {
    stage.close_group(0, 0, "the user wants no more");
    stage.step(0);
    CHECK(send->done);
    CHECK_EQ(send->code(), StatusCode::kCancelled);
  }

  size_t puts_left;
  Stage stage;
  Buffer out, in;
  std::weak_ptr<const void> lent;
  Stage::Handle send;
};

TEST(lending_ends_with_the_last_chunk) {
  Sending one(kChunks - 1);
  CHECK(!one.send->done);
  CHECK(!one.stage.protocol(0).idle());
  one.stage.link(0, 1).read = kChunks;
  one.stage.run();
  CHECK(one.send->done);
  CHECK_OK(one.send->result.status);
  CHECK(one.stage.protocol(0).idle());
  CHECK(one.lent.expired());
}

TEST(lending_says_what_is_missing) {
  Sending one(0);
  const auto open = one.stage.protocol(0).open_operations();
  CHECK_EQ(open.size(), 1u);
  CHECK_EQ(open[0].missing, std::string("rank 1 (10000 of 10000 bytes sent)"));
}

// Whether all of the message was put by then, or not.
TEST(lending_outlasts_an_operation_that_failed) {
  for (size_t puts : {kChunks, kChunks - 1}) {
    for (uint64_t read : {uint64_t{0}, puts - 1}) {
      Sending one(read, puts);
      one.fail();
      CHECK(!one.lent.expired());
      CHECK(!one.stage.protocol(0).idle());
      one.stage.run();
      CHECK(!one.lent.expired());
      one.stage.link(0, 1).read = puts;
      one.stage.run();
      CHECK(one.lent.expired());
      CHECK(one.stage.protocol(0).idle());
    }
  }
}

TEST(lending_outlasts_a_link_that_is_lost) {
  Sending one(1);
  one.stage.link(0, 1).fail(Status::peer_lost("the fake peer died"));
  one.stage.step(0);
  CHECK(one.send->done);
  CHECK_EQ(one.send->code(), StatusCode::kPeerLost);
  CHECK(!one.lent.expired());
  one.stage.link(0, 1).read = kChunks;
  one.stage.step(0);
  CHECK(one.lent.expired());
}

// The peer has it all and leaves, and this side hears of that first.
TEST(lending_that_is_over_when_the_peer_leaves_is_no_loss) {
  Sending one(kChunks - 1);
  one.stage.link(0, 1).read = kChunks;
  one.stage.link(0, 1).fail(Status::peer_lost("the fake peer left"));
  one.stage.step(0);
  CHECK(one.send->done);
  CHECK_OK(one.send->result.status);
}

TEST(lending_of_what_was_read_ends_with_the_operation) {
  Sending one(kChunks, kChunks - 1);
  one.fail();
  CHECK(one.lent.expired());
  one.stage.run();
  CHECK(one.stage.protocol(0).idle());
}

}  // namespace
}  // namespace freescale::testing
