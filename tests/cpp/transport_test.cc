// The contract of Link (cpp/transport/transport.h), held against every implementation of it.

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "tests/cpp/check.h"
#include "tests/cpp/link_pair.h"

namespace freescale::testing {
namespace {

constexpr int kUrgent = priority_level(Priority::kUrgent);
constexpr int kNormal = priority_level(Priority::kNormal);
constexpr int kBackground = priority_level(Priority::kBackground);

using Bytes = std::vector<std::byte>;

Bytes bytes_of(size_t count, uint64_t seed) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(seed * 5 + i * 3 + 1);
  return bytes;
}

class Inbox : public LinkSink {
 public:
  void on_record(std::span<const std::byte> record) override {
    records.emplace_back(record.begin(), record.end());
  }
  void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) override {
    tags.push_back(tag);
    chunks.emplace_back(data.begin(), data.end());
  }
  std::vector<Bytes> records;
  std::vector<ChunkTag> tags;
  std::vector<Bytes> chunks;
};

bool send(Link& link, const Bytes& record) { return link.try_send(record, {}); }

bool put(Link& link, int level, uint64_t token, const Bytes& data) {
  const Segment piece{const_cast<std::byte*>(data.data()), data.size()};
  return link.try_put(level, {token, token + 1}, std::span(&piece, 1));
}

void over_every_transport(const std::function<void(LinkPair&)>& body) {
  for (const LinkMaker& maker : link_makers()) {
    const std::unique_ptr<LinkPair> pair = maker.make();
    CHECK_EQ(pair->left.link->transport(), std::string(maker.name));
    body(*pair);
  }
}

// Runs the body once in each direction.
void both_ways(const std::function<void(LinkPair::End& from, LinkPair::End& to)>& body) {
  over_every_transport([&](LinkPair& pair) {
    body(pair.left, pair.right);
    body(pair.right, pair.left);
  });
}

TEST(link_carries_records_of_every_size_in_order) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    const size_t largest = from.link->max_record_bytes();
    Inbox inbox;
    CHECK(!to.link->poll_record(inbox));
    const size_t sizes[] = {0, 1, 7, 8, 63, 64, 65, 4000, largest - 1, largest};
    for (size_t size : sizes) {
      CHECK(send(*from.link, bytes_of(size, size)));
      CHECK(to.link->poll_record(inbox));
    }
    for (size_t i = 0; i < std::size(sizes); ++i) {
      CHECK(inbox.records[i] == bytes_of(sizes[i], sizes[i]));
    }
    CHECK(!to.link->poll_record(inbox));
  });
}

TEST(link_joins_the_segments_of_a_record) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    Bytes whole = bytes_of(1000, 3);
    const Segment body[] = {
        {whole.data() + 10, 0}, {whole.data() + 10, 390}, {nullptr, 0}, {whole.data() + 400, 600}};
    CHECK(from.link->try_send(std::span(whole).first(10), body));
    Inbox inbox;
    CHECK(to.link->poll_record(inbox));
    CHECK(inbox.records[0] == whole);
  });
}

TEST(link_refuses_records_when_full_and_loses_none) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    uint64_t sent = 0;
    while (send(*from.link, bytes_of(500, sent))) ++sent;
    CHECK_GE(sent, 10u);
    Inbox inbox;
    CHECK(to.link->poll_record(inbox));
    while (to.link->poll_record(inbox)) {
    }
    CHECK(send(*from.link, bytes_of(500, sent)));
    CHECK(to.link->poll_record(inbox));
    CHECK_EQ(inbox.records.size(), sent + 1);
    for (uint64_t i = 0; i <= sent; ++i) CHECK(inbox.records[i] == bytes_of(500, i));
  });
}

TEST(link_carries_chunks_with_their_tags) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    Inbox inbox;
    const size_t sizes[] = {0, 1, 4097, from.link->chunk_bytes()};
    for (int level = 0; level < kPriorityLevels; ++level) {
      CHECK(!to.link->poll_chunk(level, inbox));
      for (size_t size : sizes) {
        CHECK(put(*from.link, level, size, bytes_of(size, size)));
        CHECK(to.link->poll_chunk(level, inbox));
        CHECK_EQ(inbox.tags.back().token, size);
        CHECK_EQ(inbox.tags.back().offset, size + 1);
        CHECK(inbox.chunks.back() == bytes_of(size, size));
      }
    }
  });
}

TEST(link_lets_urgent_chunks_overtake_and_keeps_order_within_a_level) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    for (uint64_t i = 0; i < 3; ++i) CHECK(put(*from.link, kBackground, i, bytes_of(10, i)));
    CHECK(put(*from.link, kUrgent, 9, bytes_of(10, 9)));
    Inbox inbox;
    CHECK(to.link->poll_chunk(kUrgent, inbox));
    CHECK(!to.link->poll_chunk(kUrgent, inbox));
    CHECK(!to.link->poll_chunk(kNormal, inbox));
    while (to.link->poll_chunk(kBackground, inbox)) {
    }
    CHECK_EQ(inbox.tags.size(), 4u);
    CHECK_EQ(inbox.tags[0].token, 9u);
    for (uint64_t i = 0; i < 3; ++i) CHECK_EQ(inbox.tags[i + 1].token, i);
  });
}

TEST(link_keeps_credits_for_urgent_chunks) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    uint64_t bulk = 0;
    while (put(*from.link, kBackground, bulk, bytes_of(10, bulk))) ++bulk;
    CHECK_GE(bulk, 1u);
    CHECK(!from.link->can_put(kBackground, 10));
    CHECK(!from.link->can_put(kNormal, 10));
    CHECK(from.link->can_put(kUrgent, 10));
    CHECK(put(*from.link, kUrgent, 1, bytes_of(10, 1)));
    // Polling alone returns credits.
    Inbox inbox;
    CHECK(to.link->poll_chunk(kUrgent, inbox));
    CHECK(to.link->poll_chunk(kBackground, inbox));
    CHECK(from.link->can_put(kBackground, 10));
    while (to.link->poll_chunk(kBackground, inbox)) {
    }
    CHECK_EQ(inbox.chunks.size(), bulk + 1);
  });
}

TEST(link_lanes_do_not_block_each_other) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    while (put(*from.link, kUrgent, 1, bytes_of(10, 1))) {
    }
    Inbox inbox;
    CHECK(send(*from.link, bytes_of(10, 2)));
    CHECK(to.link->poll_record(inbox));
    CHECK(to.link->poll_chunk(kUrgent, inbox));
    while (send(*from.link, bytes_of(10, 3))) {
    }
    CHECK(put(*from.link, kUrgent, 4, bytes_of(10, 4)));
    while (to.link->poll_record(inbox) || to.link->poll_chunk(kUrgent, inbox)) {
    }
  });
}

// Sleeps like a caller with work in flight, until rung. False after two seconds without a ring.
bool sleep_until_rung(Doorbell& doorbell, uint32_t ticket) {
  const Nanoseconds start = now_ns();
  doorbell.sleep(ticket, Doorbell::kCaller, 2'000'000'000);
  doorbell.finish(Doorbell::kCaller);
  return now_ns() - start < 1'900'000'000;
}

TEST(link_notify_wakes_the_peer) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    Inbox inbox;
    for (const bool record : {true, false}) {
      const uint32_t ticket = to.doorbell->prepare(Doorbell::kCaller, true);
      CHECK(record ? send(*from.link, bytes_of(1, 1)) : put(*from.link, 0, 1, bytes_of(1, 1)));
      from.link->notify();
      CHECK(sleep_until_rung(*to.doorbell, ticket));
      CHECK(record ? to.link->poll_record(inbox) : to.link->poll_chunk(0, inbox));
    }
  });
}

// The peer has nothing to send back: room alone must wake the sender.
TEST(link_wakes_a_sender_that_found_no_room) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    Inbox inbox;
    while (put(*from.link, kNormal, 1, bytes_of(10, 1))) {
    }
    uint32_t ticket = from.doorbell->prepare(Doorbell::kCaller, true);
    CHECK(!from.link->can_put(kNormal, 10));
    CHECK(to.link->poll_chunk(kNormal, inbox));
    CHECK(sleep_until_rung(*from.doorbell, ticket));
    CHECK(from.link->can_put(kNormal, 10));

    while (send(*from.link, bytes_of(100, 1))) {
    }
    ticket = from.doorbell->prepare(Doorbell::kCaller, true);
    CHECK(!send(*from.link, bytes_of(100, 1)));
    CHECK(to.link->poll_record(inbox));
    CHECK(sleep_until_rung(*from.doorbell, ticket));
    CHECK(send(*from.link, bytes_of(100, 1)));
    while (to.link->poll_record(inbox) || to.link->poll_chunk(kNormal, inbox)) {
    }
  });
}

TEST(link_reads_the_peers_memory_where_that_was_proven) {
  both_ways([](LinkPair::End& from, LinkPair::End&) {
    if (from.link->transport() == "paced shm") return;  // never
    if (!from.link->can_pull()) SKIP("this kernel forbids process_vm_readv");
    const Bytes there = bytes_of(300'000, 4);
    Bytes here(there.size());
    CHECK_OK(from.link->pull(reinterpret_cast<uint64_t>(there.data()), here.data(), here.size()));
    CHECK(here == there);
    const Status bad = from.link->pull(8, here.data(), 100);
    CHECK_EQ(bad.code(), StatusCode::kSystem);
  });
}

TEST(link_shows_revocations_to_the_peer_alone) {
  both_ways([](LinkPair::End& from, LinkPair::End& to) {
    const uint64_t before = to.link->peer_revocations();
    const uint64_t own = to.link->revocations();
    CHECK_EQ(from.link->revocations(), before);
    from.link->revoke();
    CHECK_EQ(from.link->revocations(), before + 1);
    CHECK_EQ(to.link->peer_revocations(), before + 1);
    CHECK_EQ(to.link->revocations(), own);
  });
}

TEST(link_keeps_the_first_failure_and_what_was_sent_before) {
  over_every_transport([](LinkPair& pair) {
    CHECK(send(*pair.left.link, bytes_of(10, 1)));
    CHECK(put(*pair.left.link, kNormal, 1, bytes_of(10, 2)));
    CHECK(!pair.right.link->failed());
    pair.right.link->fail(Status::peer_lost("first"));
    pair.right.link->fail(Status::peer_lost("second"));
    CHECK(pair.right.link->failed());
    CHECK_EQ(pair.right.link->failure().message(), std::string("first"));
    CHECK(!pair.left.link->failed());
    Inbox inbox;
    CHECK(pair.right.link->poll_record(inbox));
    CHECK(pair.right.link->poll_chunk(kNormal, inbox));
  });
}

size_t size_of(uint64_t number) { return number * 37 % 3000; }
auto is(uint64_t number) {
  return [byte = static_cast<std::byte>(number)](std::byte other) { return other == byte; };
}

// One rank of a conversation: sends records and chunks of all levels as fast as they are taken,
// checks what comes, and sleeps without a limit when it can do neither.
class Talker : public LinkSink {
 public:
  explicit Talker(LinkPair::End& end) : end_(end) {}

  void on_record(std::span<const std::byte> record) override {
    CHECK_EQ(record.size(), size_of(records_in_));
    CHECK(std::all_of(record.begin(), record.end(), is(records_in_++)));
  }
  void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) override {
    CHECK_EQ(tag.token, chunks_in_[tag.offset]);
    CHECK_EQ(data.size(), size_of(tag.token));
    CHECK(std::all_of(data.begin(), data.end(), is(chunks_in_[tag.offset]++)));
    ++all_chunks_in_;
  }

  void talk() {
    while (!done()) {
      if (step()) continue;
      const uint32_t ticket = end_.doorbell->prepare(Doorbell::kCaller, true);
      if (!step() && !done()) end_.doorbell->sleep(ticket, Doorbell::kCaller, -1);
      end_.doorbell->finish(Doorbell::kCaller);
    }
  }

 private:
  static constexpr uint64_t kCount = 20'000;

  bool done() const {
    return records_in_ == kCount && all_chunks_in_ == kCount && records_out_ == kCount &&
           chunks_out_ == kCount;
  }
  // Whether anything moved.
  bool step() {
    bool moved = say();
    moved = end_.link->poll_record(*this) || moved;
    for (int level = 0; level < kPriorityLevels; ++level) {
      moved = end_.link->poll_chunk(level, *this) || moved;
    }
    return moved;
  }
  bool say() {
    bool said = false;
    if (records_out_ < kCount && send(*end_.link, filled(records_out_))) {
      ++records_out_;
      said = true;
    }
    const int level = static_cast<int>(chunks_out_ * 3 % kPriorityLevels);
    const Bytes data = filled(level_out_[level]);
    const Segment piece{const_cast<std::byte*>(data.data()), data.size()};
    const ChunkTag tag{level_out_[level], static_cast<uint64_t>(level)};
    if (chunks_out_ < kCount && end_.link->try_put(level, tag, std::span(&piece, 1))) {
      ++level_out_[level];
      ++chunks_out_;
      said = true;
    }
    if (said) end_.link->notify();
    return said;
  }
  static Bytes filled(uint64_t number) {
    return Bytes(size_of(number), static_cast<std::byte>(number));
  }

  LinkPair::End& end_;
  uint64_t records_out_ = 0;
  uint64_t records_in_ = 0;
  uint64_t chunks_out_ = 0;
  uint64_t level_out_[kPriorityLevels] = {};
  uint64_t chunks_in_[kPriorityLevels] = {};
  uint64_t all_chunks_in_ = 0;
};

TEST_WITHIN(link_carries_everything_both_ways_at_once, 60) {
  over_every_transport([](LinkPair& pair) {
    Talker left(pair.left);
    Talker right(pair.right);
    std::thread other([&] { right.talk(); });
    left.talk();
    other.join();
  });
}

}  // namespace
}  // namespace freescale::testing
