#include "cpp/transport/shm/chunk_lane.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

constexpr int kUrgent = priority_level(Priority::kUrgent);
constexpr int kHigh = priority_level(Priority::kHigh);
constexpr int kNormal = priority_level(Priority::kNormal);
constexpr int kBackground = priority_level(Priority::kBackground);

class Collector : public LinkSink {
 public:
  void on_record(std::span<const std::byte>) override { CHECK(false); }
  void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) override {
    tags.push_back(tag);
    last.assign(data.begin(), data.end());
  }
  std::vector<ChunkTag> tags;
  std::vector<std::byte> last;
};

struct Lane {
  Lane() : memory(ChunkLaneMemory::bytes_needed(geometry) / sizeof(Page) + 1) {}

  struct alignas(4096) Page {
    std::byte bytes[4096] = {};
  };
  bool put(int level, uint64_t token, size_t bytes = 16) {
    std::vector<std::byte> data(bytes, static_cast<std::byte>(token));
    const Segment piece{data.data(), data.size()};
    return writer.try_put(level, {token, 0}, std::span(&piece, 1));
  }
  ChunkLaneReader::Poll poll(int level) { return reader.poll(level, sink); }

  ChunkGeometry geometry{.chunk_bytes = 4096, .chunks = 8};
  std::vector<Page> memory;
  ChunkLaneWriter writer{memory[0].bytes, geometry};
  ChunkLaneReader reader{memory[0].bytes, geometry};
  Collector sink;
};

TEST(chunk_lane_delivers_tag_and_bytes) {
  Lane lane;
  CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kEmpty);
  std::byte first[100];
  std::byte second[50];
  std::memset(first, 3, sizeof(first));
  std::memset(second, 4, sizeof(second));
  const Segment pieces[] = {{first, 100}, {nullptr, 0}, {second, 50}};
  CHECK(lane.writer.try_put(kNormal, {42, 77}, pieces));
  CHECK_EQ(lane.poll(kUrgent), ChunkLaneReader::Poll::kEmpty);
  CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kChunk);
  CHECK_EQ(lane.sink.tags[0].token, 42u);
  CHECK_EQ(lane.sink.tags[0].offset, 77u);
  CHECK_EQ(lane.sink.last.size(), 150u);
  CHECK(std::memcmp(lane.sink.last.data(), first, 100) == 0);
  CHECK(std::memcmp(lane.sink.last.data() + 100, second, 50) == 0);
}

TEST(chunk_lane_takes_full_and_empty_chunks) {
  Lane lane;
  CHECK(lane.put(kNormal, 1, 4096));
  CHECK(lane.put(kNormal, 2, 0));
  CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kChunk);
  CHECK(lane.sink.last == std::vector<std::byte>(4096, std::byte{1}));
  CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kChunk);
  CHECK_EQ(lane.sink.last.size(), 0u);
}

TEST(chunk_lane_keeps_a_reserve_for_urgent_and_high) {
  for (int bulk = kNormal; bulk <= kBackground; ++bulk) {
    Lane lane;
    for (int i = 0; i < 6; ++i) CHECK(lane.put(bulk, i));
    CHECK(!lane.writer.can_put(bulk));
    CHECK(!lane.put(bulk, 6));
    CHECK(lane.writer.can_put(kUrgent));
    CHECK(lane.put(kHigh, 7));
    CHECK(lane.put(kUrgent, 8));
    CHECK(!lane.writer.can_put(kUrgent));
    // One slot back is still one of the reserve.
    CHECK_EQ(lane.poll(kUrgent), ChunkLaneReader::Poll::kChunk);
    CHECK(!lane.writer.can_put(bulk));
    CHECK(lane.writer.can_put(kUrgent));
  }
}

TEST(chunk_lane_returns_credits_across_levels) {
  Lane lane;
  for (uint64_t round = 0; round < 1000; ++round) {
    for (uint64_t i = 0; i < 6; ++i) CHECK(lane.put(kNormal + static_cast<int>(i % 3), i));
    CHECK(!lane.writer.can_put(kNormal));
    for (uint64_t i = 0; i < 6; ++i) {
      CHECK_EQ(lane.poll(kNormal + static_cast<int>(i % 3)), ChunkLaneReader::Poll::kChunk);
    }
  }
}

TEST(chunk_lane_keeps_order_within_a_level_and_lets_urgent_overtake) {
  Lane lane;
  for (uint64_t i = 0; i < 5; ++i) CHECK(lane.put(kBackground, i));
  CHECK(lane.put(kUrgent, 100));
  CHECK_EQ(lane.poll(kUrgent), ChunkLaneReader::Poll::kChunk);
  CHECK_EQ(lane.sink.tags.back().token, 100u);
  for (uint64_t i = 0; i < 5; ++i) {
    CHECK_EQ(lane.poll(kBackground), ChunkLaneReader::Poll::kChunk);
    CHECK_EQ(lane.sink.tags.back().token, i);
    CHECK(lane.sink.last == std::vector<std::byte>(16, static_cast<std::byte>(i)));
  }
}

TEST(chunk_lane_reader_learns_that_the_writer_waits) {
  Lane lane;
  for (int i = 0; i < 6; ++i) CHECK(lane.put(kNormal, i));
  CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kChunk);
  CHECK(!lane.reader.take_writer_waits());
  CHECK(lane.put(kNormal, 6));
  CHECK(!lane.put(kNormal, 7));
  CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kChunk);
  CHECK(lane.reader.take_writer_waits());
  CHECK(!lane.reader.take_writer_waits());
}

// What lies in the memory may come from a broken or hostile process.
class ForgedLane : public ChunkLaneMemory {
 public:
  explicit ForgedLane(Lane& lane) : ChunkLaneMemory(lane.memory[0].bytes, lane.geometry) {}
  void set_first(int level, uint32_t slot, uint32_t bytes) {
    queues_->filled[level].entries[0].slot = slot;
    queues_->filled[level].entries[0].bytes = bytes;
  }
  void set_written(int level, uint32_t written) { queues_->filled[level].written.store(written); }
  void give_back(std::initializer_list<uint32_t> slots, uint32_t written) {
    std::copy(slots.begin(), slots.end(), queues_->returned.slots);
    queues_->returned.written.store(written);
  }
};

TEST(chunk_lane_refuses_slots_and_sizes_that_lead_out) {
  const std::pair<uint32_t, uint32_t> forged[] = {{8, 16}, {~0u, 16}, {0, 4097}, {0, ~0u}};
  for (const auto& [slot, bytes] : forged) {
    Lane lane;
    CHECK(lane.put(kNormal, 1));
    ForgedLane(lane).set_first(kNormal, slot, bytes);
    CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kCorrupt);
    CHECK(lane.sink.tags.empty());
  }
}

// Slots that lead out, that come back twice or were never lent, and more than all of them.
TEST(chunk_lane_writer_detects_forged_returns) {
  const struct {
    std::initializer_list<uint32_t> slots;
    uint32_t written;
  } forged[] = {{{100}, 1}, {{~0u}, 1}, {{8}, 1}, {{0, 0}, 2}, {{7}, 1}, {{0}, ~0u}, {{0}, 9}};
  for (const auto& one : forged) {
    Lane lane;
    for (int i = 0; i < 6; ++i) CHECK(lane.put(kNormal, i));
    CHECK(!lane.writer.corrupt());
    ForgedLane(lane).give_back(one.slots, one.written);
    CHECK(lane.put(kUrgent, 1));  // the two that are kept for it
    CHECK(lane.writer.corrupt());
    // The reader refuses a slot that leads out, so this says that none was used.
    CHECK_EQ(lane.poll(kUrgent), ChunkLaneReader::Poll::kChunk);
  }
}

// A counter that was set back, or that runs ahead: the reader must not walk there step by step.
TEST(chunk_lane_reader_detects_forged_counters) {
  for (const uint32_t written : {0u, 3u, 4u + 9, ~0u}) {
    Lane lane;
    for (int i = 0; i < 4; ++i) {
      CHECK(lane.put(kNormal, i));
      CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kChunk);
    }
    ForgedLane(lane).set_written(kNormal, written);
    CHECK_EQ(lane.poll(kNormal), ChunkLaneReader::Poll::kCorrupt);
    CHECK_EQ(lane.poll(kUrgent), ChunkLaneReader::Poll::kEmpty);
  }
}

TEST(chunk_lane_geometry_is_bounded) {
  CHECK(ChunkLaneMemory::valid({}));
  CHECK(!ChunkLaneMemory::valid({.chunk_bytes = 4096, .chunks = 2}));
  CHECK(!ChunkLaneMemory::valid({.chunk_bytes = 4096, .chunks = 17}));
  CHECK(!ChunkLaneMemory::valid({.chunk_bytes = 0, .chunks = 8}));
  CHECK(!ChunkLaneMemory::valid({.chunk_bytes = 5000, .chunks = 8}));
  CHECK(!ChunkLaneMemory::valid({.chunk_bytes = size_t{1} << 40, .chunks = 8}));
}

// Checks that the chunks of each level come in the order of their tokens, and whole.
class Ordered : public LinkSink {
 public:
  void on_record(std::span<const std::byte>) override { CHECK(false); }
  void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) override {
    CHECK_EQ(tag.token, next[tag.offset]++);
    CHECK_EQ(data.size(), 1 + tag.token % 4096);
    const auto wrong = [&](std::byte byte) { return byte != static_cast<std::byte>(tag.token); };
    CHECK(std::none_of(data.begin(), data.end(), wrong));
    ++count;
  }
  uint64_t next[kPriorityLevels] = {};
  uint64_t count = 0;
};

TEST_WITHIN(chunk_lane_concurrent_writer_and_reader, 60) {
  constexpr uint64_t kChunks = 100'000;
  Lane lane;
  std::thread writer([&] {
    std::vector<std::byte> data(4096);
    uint64_t token[kPriorityLevels] = {};
    for (uint64_t i = 0; i < kChunks; ++i) {
      const int level = static_cast<int>(i * 7 / 3 % kPriorityLevels);
      const uint64_t number = token[level]++;
      std::fill(data.begin(), data.end(), static_cast<std::byte>(number));
      const Segment piece{data.data(), 1 + number % 4096};
      const ChunkTag tag{number, static_cast<uint64_t>(level)};
      while (!lane.writer.try_put(level, tag, std::span(&piece, 1))) std::this_thread::yield();
    }
  });
  Ordered sink;
  while (sink.count < kChunks) {
    bool any = false;
    for (int level = 0; level < kPriorityLevels; ++level) {
      const ChunkLaneReader::Poll poll = lane.reader.poll(level, sink);
      CHECK_NE(poll, ChunkLaneReader::Poll::kCorrupt);
      any = any || poll == ChunkLaneReader::Poll::kChunk;
    }
    if (!any) std::this_thread::yield();
  }
  writer.join();
}

}  // namespace
}  // namespace freescale
