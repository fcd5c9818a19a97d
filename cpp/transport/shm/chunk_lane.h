#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/priority.h"
#include "cpp/device/segment.h"
#include "cpp/transport/transport.h"

namespace freescale {

// Size of a chunk lane. Both ends must agree on it.
struct ChunkGeometry {
  size_t chunk_bytes = 128 << 10;  // fits a core's L2 several times; 32 KiB was half as fast
  uint32_t chunks = 8;             // at most kMaxChunks
};

// Cache-sized chunks in shared memory, from one writer to one reader in different processes. All
// levels share one pool of slots; each level has a queue of filled slots of its own, so the reader
// takes the most urgent first however much bulk is queued. The reader hands slots back through a
// queue; the writer reuses the slot that came back last, which is the one most likely still cached.
class ChunkLaneMemory {
 public:
  static constexpr uint32_t kMaxChunks = 16;
  // Slots that the levels from NORMAL downwards leave to URGENT and HIGH.
  static constexpr uint32_t kReserved = 2;

  ChunkLaneMemory(std::byte* memory, ChunkGeometry geometry)
      : queues_(reinterpret_cast<Queues*>(memory)),
        slots_(memory + sizeof(Queues)),
        geometry_(geometry) {}

  static size_t bytes_needed(const ChunkGeometry& geometry) {
    return sizeof(Queues) + geometry.chunk_bytes * geometry.chunks;
  }
  static bool valid(const ChunkGeometry& geometry) {
    return geometry.chunks > kReserved && geometry.chunks <= kMaxChunks &&
           geometry.chunk_bytes >= 4096 && geometry.chunk_bytes <= (64u << 20) &&
           geometry.chunk_bytes % 4096 == 0;
  }

 protected:
  struct Filled {
    ChunkTag tag;
    uint32_t slot;
    uint32_t bytes;
  };
  // Never full: it has room for all slots of the lane.
  struct FilledQueue {
    alignas(64) std::atomic<uint32_t> written;
    alignas(64) Filled entries[kMaxChunks];
  };
  struct ReturnQueue {
    alignas(64) std::atomic<uint32_t> written;
    alignas(64) uint32_t slots[kMaxChunks];
    std::atomic<uint32_t> writer_waits;  // set by the writer, cleared by the reader
  };
  struct Queues {
    FilledQueue filled[kPriorityLevels];
    ReturnQueue returned;
  };

  std::byte* slot(uint32_t index) const { return slots_ + index * geometry_.chunk_bytes; }

  Queues* queues_;
  std::byte* slots_;
  ChunkGeometry geometry_;
};

class ChunkLaneWriter : public ChunkLaneMemory {
 public:
  ChunkLaneWriter(std::byte* memory, ChunkGeometry geometry);

  // When it is false the reader learns from take_writer_waits() that somebody is to be told of a
  // slot.
  bool can_put(int level);
  bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces);
  // Whether the reader's side of the lane holds nonsense; no slot is taken from it any more.
  bool corrupt() const { return corrupt_; }

 private:
  void collect_returned();

  std::vector<uint32_t> free_;  // last in, first out
  std::bitset<kMaxChunks> lent_;
  bool corrupt_ = false;
  uint32_t returned_seen_ = 0;
  uint32_t written_[kPriorityLevels] = {};
};

class ChunkLaneReader : public ChunkLaneMemory {
 public:
  using ChunkLaneMemory::ChunkLaneMemory;

  enum class Poll { kEmpty, kChunk, kCorrupt };
  Poll poll(int level, LinkSink& sink);
  // After a kChunk: whether the writer found no slot since this was last true.
  bool take_writer_waits();

 private:
  uint32_t read_[kPriorityLevels] = {};
  uint32_t returned_ = 0;
};

}  // namespace freescale
