#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "cpp/base/priority.h"
#include "cpp/transport/transport.h"

namespace freescale::testing {

// One end of a link between two protocols that one thread drives: its lanes are queues, its limits
// can be set, and it remembers in which order chunks went out.
class FakeLink : public Link {
 public:
  struct Put {
    int level;
    uint64_t token;
    uint64_t offset;
    size_t bytes;
  };

  static void connect(FakeLink& a, FakeLink& b) {
    a.peer_ = &b;
    b.peer_ = &a;
  }

  // How many records the lane to the peer holds, and how many chunks.
  size_t record_limit = 1000;
  size_t chunk_limit = 4;
  size_t largest_record = 32 << 10;
  // If set: how many chunks this link and the others that it is shared with may still put.
  size_t* shared_puts = nullptr;
  // So many of the chunks that were put are no longer read; the rest still are.
  uint64_t read = UINT64_MAX;
  bool pullable = false;
  bool near = true;
  // Takes the place of the peer's memory, for addresses that are not real.
  std::function<Status(uint64_t from, std::byte* to, size_t bytes)> pulls_from;

  std::vector<Put> puts;    // all so far
  size_t records_sent = 0;  // all so far
  size_t inline_bytes = 0;  // of them, beyond the header

  size_t max_record_bytes() const override { return largest_record; }
  size_t chunk_bytes() const override { return 1000; }

  bool try_send(std::span<const std::byte> head, std::span<const Segment> body) override {
    if (peer_->records_.size() >= record_limit) return false;
    std::vector<std::byte> record(head.begin(), head.end());
    for (const Segment& segment : body) {
      record.insert(record.end(), segment.data, segment.data + segment.bytes);
    }
    if (record.size() > largest_record) return false;
    peer_->records_.push_back(std::move(record));
    ++records_sent;
    return true;
  }
  bool poll_record(LinkSink& sink) override {
    if (records_.empty()) return false;
    const std::vector<std::byte> record = std::move(records_.front());
    records_.pop_front();
    sink.on_record(record);
    return true;
  }

  bool can_put(int level, size_t) override {
    if (shared_puts != nullptr && *shared_puts == 0) return false;
    size_t queued = 0;
    for (const auto& lane : peer_->chunks_) queued += lane.size();
    const bool urgent = level <= priority_level(Priority::kHigh);
    return queued + (urgent ? 0 : kReserved) < chunk_limit;
  }
  bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) override {
    if (!can_put(level, 0)) return false;
    Chunk chunk{tag, {}};
    for (const Segment& piece : pieces) {
      chunk.data.insert(chunk.data.end(), piece.data, piece.data + piece.bytes);
    }
    if (shared_puts != nullptr) --*shared_puts;
    puts.push_back({level, tag.token, tag.offset, chunk.data.size()});
    peer_->chunks_[level].push_back(std::move(chunk));
    return true;
  }
  uint64_t put_count() const override { return puts.size(); }
  bool has_read(uint64_t count) override { return count <= read; }
  bool poll_chunk(int level, LinkSink& sink) override {
    auto& lane = chunks_[level];
    if (lane.empty()) return false;
    const Chunk chunk = std::move(lane.front());
    lane.pop_front();
    sink.on_chunk(chunk.tag, chunk.data);
    return true;
  }

  void notify() override {}
  bool can_pull() const override { return pullable; }
  bool within_host() const override { return near; }
  Status pull(uint64_t from, std::byte* to, size_t bytes) override {
    if (pulls_from) return pulls_from(from, to, bytes);
    const auto* source = reinterpret_cast<const std::byte*>(from);
    std::copy(source, source + bytes, to);
    pulls.push_back(bytes);
    return {};
  }
  void revoke() override { ++revocations_; }
  uint64_t revocations() const override { return revocations_; }
  uint64_t peer_revocations() const override { return peer_->revocations_; }
  std::string transport() const override { return "fake"; }
  std::string peer_name() const override { return "the fake peer"; }

  std::vector<size_t> pulls;  // bytes of each

 private:
  struct Chunk {
    ChunkTag tag;
    std::vector<std::byte> data;
  };
  static constexpr size_t kReserved = 1;

  FakeLink* peer_ = nullptr;
  std::deque<std::vector<std::byte>> records_;  // to this end
  std::deque<Chunk> chunks_[kPriorityLevels];
  uint64_t revocations_ = 0;
};

}  // namespace freescale::testing
