// What an emulated card lets through, by a clock that the test sets.

#include "cpp/transport/paced_link.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "cpp/transport/emulated_nic.h"
#include "tests/cpp/check.h"
#include "tests/cpp/fake_link.h"

namespace freescale::testing {
namespace {

constexpr int kUrgent = priority_level(Priority::kUrgent);
constexpr int kBulk = priority_level(Priority::kBackground);
constexpr Nanoseconds kMicrosecond = 1'000;
constexpr Nanoseconds kHour = 3'600'000'000'000;
// So that a byte takes a microsecond, and a chunk of a FakeLink a millisecond.
constexpr uint64_t kRate = 1'000'000;
constexpr size_t kChunk = 1000;
constexpr Nanoseconds kChunkTime = 1'000'000;

Nanoseconds fake_now = 0;
Nanoseconds fake_clock() { return fake_now; }

struct Chunks : LinkSink {
  void on_record(std::span<const std::byte>) override { ++records; }
  void on_chunk(const ChunkTag&, std::span<const std::byte> data) override { bytes += data.size(); }
  size_t records = 0;
  size_t bytes = 0;
};

// One process's links, to `peers` others that take everything at once.
struct Card {
  explicit Card(size_t peers, uint64_t rate = kRate)
      : nic(std::make_shared<EmulatedNic>(rate, fake_clock)) {
    fake_now = kHour;
    for (size_t i = 0; i < peers; ++i) {
      inner.push_back(std::make_shared<FakeLink>());
      far.push_back(std::make_shared<FakeLink>());
      FakeLink::connect(*inner[i], *far[i]);
      links.push_back(std::make_unique<PacedLink>(inner[i], nic));
    }
  }
  bool put(size_t link, size_t bytes = kChunk, int level = kBulk) {
    std::vector<std::byte> data(bytes);
    const Segment piece{data.data(), bytes};
    if (!links[link]->try_put(level, {}, std::span(&piece, 1))) return false;
    if (more) links[link]->goes_on(level);
    while (far[link]->poll_chunk(level, sink)) {
    }
    return true;
  }
  void send(size_t link, size_t bytes) {
    const std::vector<std::byte> record(bytes);
    CHECK(links[link]->try_send(record, {}));
  }

  std::shared_ptr<EmulatedNic> nic;
  std::vector<std::shared_ptr<FakeLink>> inner;
  std::vector<std::shared_ptr<FakeLink>> far;
  std::vector<std::unique_ptr<PacedLink>> links;
  Chunks sink;
  bool more = true;  // after each chunk
};

TEST(paced_chunk_goes_when_its_last_byte_would_be_out) {
  Card card(1);
  const Nanoseconds start = fake_now;
  CHECK(!card.put(0, 300));
  CHECK_EQ(card.links[0]->retry_at(), start + 300 * kMicrosecond);
  fake_now = start + 300 * kMicrosecond - 1;
  CHECK(!card.put(0, 300));
  fake_now += 1;
  CHECK(card.links[0]->can_put(kBulk, 300));
  CHECK(card.put(0, 300));
  CHECK_EQ(card.sink.bytes, 300u);
}

TEST(paced_links_share_one_rate) {
  Card card(2);
  CHECK(!card.put(0));
  CHECK(!card.put(1));
  fake_now += kChunkTime;
  CHECK(card.put(0));
  CHECK(!card.put(1));
  CHECK_EQ(card.links[1]->retry_at(), fake_now + kChunkTime);
  fake_now += kChunkTime;
  CHECK(card.put(1));
}

TEST(paced_caller_who_wakes_late_catches_up) {
  Card card(1);
  const Nanoseconds start = fake_now;
  CHECK(!card.put(0));
  fake_now = start + 3 * kChunkTime + kChunkTime / 2;
  for (int i = 0; i < 3; ++i) CHECK(card.put(0));
  CHECK(!card.put(0));
  CHECK_EQ(card.links[0]->retry_at(), start + 4 * kChunkTime);
}

TEST(paced_idle_wire_saves_nothing_up) {
  Card card(1);
  card.more = false;
  for (const Nanoseconds idle : {kMicrosecond, kHour}) {
    CHECK(!card.put(0));
    fake_now += kChunkTime;
    CHECK(card.put(0));
    fake_now += idle;
    CHECK(!card.put(0));
    CHECK_EQ(card.links[0]->retry_at(), fake_now + kChunkTime);
    fake_now += kChunkTime;
    CHECK(card.put(0));
  }
}

// A message that was given up: its place in the line is worth nothing later.
TEST(paced_wish_that_is_not_renewed_is_forgotten) {
  Card card(2);
  CHECK(!card.put(0));
  CHECK(!card.put(1));
  fake_now += kHour;
  for (const size_t link : {0, 1}) CHECK(!card.put(link));
  fake_now += kChunkTime;
  CHECK(card.put(0));
  CHECK(!card.put(1));
}

TEST(paced_urgent_chunk_waits_for_one_other_at_most) {
  Card card(2);
  CHECK(!card.put(0));  // on the wire
  CHECK(!card.put(1));
  CHECK(!card.put(1, kChunk, kUrgent));
  fake_now += kChunkTime;
  CHECK(!card.put(1, kChunk, kUrgent));  // asks first, as the protocol has it
  CHECK(card.put(0));
  CHECK(!card.put(0));
  CHECK(!card.put(1));
  fake_now += kChunkTime;
  CHECK(card.put(1, kChunk, kUrgent));
}

TEST(paced_larger_chunk_pays_what_the_one_before_it_did_not) {
  Card card(1);
  CHECK(!card.put(0, 100));
  fake_now += 100 * kMicrosecond;
  CHECK(!card.put(0, 400));
  fake_now += 300 * kMicrosecond - 1;
  CHECK(!card.put(0, 400));
  fake_now += 1;
  CHECK(card.put(0, 400));
}

TEST(paced_records_go_at_once_and_hold_up_what_follows) {
  Card card(2);
  card.send(0, 500);
  CHECK(!card.links[1]->prefers_chunks());
  CHECK(!card.put(1, 100));
  fake_now += 500 * kMicrosecond;
  CHECK(!card.put(1, 100));
  fake_now += 100 * kMicrosecond;
  CHECK(card.put(1, 100));
  for (int i = 0; i < 5; ++i) card.send(0, 1000);
  CHECK(card.links[1]->prefers_chunks());
  fake_now += kChunkTime;
  CHECK(!card.links[1]->prefers_chunks());
}

// A record that comes while somebody is late for the wire takes nothing from him.
TEST(paced_record_counts_beside_a_chunk_that_waits) {
  Card card(2);
  const Nanoseconds start = fake_now;
  CHECK(!card.put(0));
  fake_now = start + 2 * kChunkTime;
  card.send(1, 100);
  CHECK(card.put(0));
  CHECK(!card.put(0));
  CHECK_EQ(card.links[0]->retry_at(), start + 2 * kChunkTime + 100 * kMicrosecond);
}

TEST(paced_link_that_is_full_names_no_time) {
  Card card(1);
  card.inner[0]->chunk_limit = 1;  // which is kept for urgent ones
  CHECK(!card.links[0]->can_put(kBulk, kChunk));
  CHECK_EQ(card.links[0]->retry_at(), Link::kNoRetry);
  // It has waited all the time.
  fake_now += kChunkTime;
  card.inner[0]->chunk_limit = 4;
  CHECK(card.put(0));
}

TEST(paced_link_fails_with_the_link_below_and_tells_the_peer) {
  Card card(1);
  std::string told;
  card.links[0]->set_tell_peer([&](const std::string& why) { told = why; });
  card.inner[0]->give_up(Status::peer_lost("nonsense"));
  CHECK(card.links[0]->failed());
  CHECK_EQ(card.links[0]->failure().message(), std::string("nonsense"));
  CHECK_EQ(told, std::string("nonsense"));
}

TEST(paced_link_is_not_read_directly) {
  Card card(1);
  card.inner[0]->pullable = true;
  CHECK(!card.links[0]->can_pull());
  CHECK(!card.links[0]->pull(0, nullptr, 0).ok());
}

// Whatever is asked for and when: never faster than the rate; and where somebody always asks when
// told to, not slower either, and each gets his share.
TEST(paced_bytes_never_exceed_the_rate_and_none_starves) {
  constexpr size_t kPeers = 3;
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const uint64_t rate = 1000 + random() % 1'000'000'000;
    Card card(kPeers, rate);
    const Nanoseconds start = fake_now;
    size_t records = 0;
    size_t puts[kPeers] = {};
    size_t first = 0;
    for (int round = 0; round < 300; ++round) {
      Nanoseconds next = Link::kNoRetry;
      const size_t from = first;
      for (size_t i = 0; i < kPeers; ++i) {
        const size_t link = (from + i) % kPeers;
        if (card.put(link)) {
          ++puts[link];
          first = link + 1;
        } else {
          next = std::min(next, card.links[link]->retry_at());
        }
        if (random() % 10 == 0) {
          card.send(link, random() % 64);
          records += 64;
        }
      }
      const double allowed =
          static_cast<double>(fake_now - start) * 1e-9 * static_cast<double>(rate);
      CHECK_GE(allowed + 1e-6, static_cast<double>(card.sink.bytes));
      if (next == Link::kNoRetry) continue;
      CHECK_GE(next, fake_now);
      // Late by up to three chunks, but not by so much that it would be forgotten.
      const uint64_t latest = std::min<uint64_t>(3'000'000'000'000 / rate, 90'000'000);
      fake_now = next + static_cast<Nanoseconds>(random() % latest);
    }
    const double span = static_cast<double>(fake_now - start) * 1e-9;
    CHECK_GE(static_cast<double>(card.sink.bytes + records) + 5 * kChunk,
             span * static_cast<double>(rate));
    const auto [least, most] = std::minmax_element(puts, puts + kPeers);
    CHECK_GE(*least + 2, *most);
  }
}

}  // namespace
}  // namespace freescale::testing
