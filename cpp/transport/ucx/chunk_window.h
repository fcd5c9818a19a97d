#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"

namespace freescale::ucx {

// How many bytes of chunks may be on their way to one peer: enough to keep the wire busy, and no
// more, as they are what an urgent chunk has to wait for. UCX and the kernel send in the order in
// which they are given.
//
// Twice the product of the rate at which the receiver has taken bytes lately and of the shortest
// time that one chunk took there and back; at least two chunks. In an
// experiment with UCX's puts on a link of 2 Gbit/s, 4 MiB beside bulk took 1.25 times their idle
// time with 512 KiB of bulk in flight, 1.9 times with 4 MiB, and the bulk lost 1.6 % at most.
//
// Of a level's chunks so many may be on their way, those of more urgent levels included: where
// these fill the wire, bulk would only take its share of it.
//
// Belongs to the holder of the progress lock.
class ChunkWindow {
 public:
  explicit ChunkWindow(size_t chunk_bytes)
      : least_(2 * chunk_bytes),
        most_(kMostChunks * chunk_bytes),
        size_(kFirstChunks * chunk_bytes) {}

  // A window that is too small for the chunk still takes one at a time.
  bool has_room(int level, size_t bytes) const;
  void note_put(int level, size_t bytes, Nanoseconds now);
  // The receiver has taken so many bytes of the level in all. False for nonsense: fewer than it
  // said before, or more than were put.
  bool note_taken(int level, uint64_t total, Nanoseconds now);

  size_t size() const { return size_; }
  size_t in_flight(int level) const {
    return static_cast<size_t>(levels_[level].put - levels_[level].taken);
  }

 private:
  static constexpr size_t kFirstChunks = 8;
  static constexpr size_t kMostChunks = 128;
  // The shortest time is forgotten after this: the way may have changed.
  static constexpr Nanoseconds kForget = 10'000'000'000;

  struct Put {
    uint64_t end;         // of its level
    uint64_t taken_then;  // of all levels
    Nanoseconds at;
  };
  struct Level {
    uint64_t put = 0;
    uint64_t taken = 0;
    std::deque<Put> open;
  };
  void measure(const Put& put, Nanoseconds now);

  size_t least_;
  size_t most_;
  size_t size_;
  std::array<Level, kPriorityLevels> levels_;
  uint64_t taken_ = 0;        // of all levels
  Nanoseconds shortest_ = 0;  // 0: none yet
  Nanoseconds shortest_at_ = 0;
  double rate_ = 0;  // bytes per nanosecond
};

}  // namespace freescale::ucx
