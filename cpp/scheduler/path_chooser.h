#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cpp/base/clock.h"
#include "cpp/scheduler/path.h"

namespace freescale {

// Picks the faster of kChunks and kPull for each size by measuring both, all the time. Which one
// wins depends on the size, on the machine, and on where the two processes run just now: on cores
// that share a cache, chunks took 58 us and reads 78 us for a 1 MiB all-to-all; on cores that do
// not, chunks took 170 us and reads 73 us. A virtual machine moves between the two within seconds
// (docs/performance.md). One for each peer; belongs to the holder of the progress lock.
class PathChooser {
 public:
  // Whether the messages of operation `number` go the way that seems slower, to notice when it no
  // longer is: one operation in 64. All its messages do, on all ranks (which number collectives
  // alike): an operation is as slow as its slowest message, so if each message decided for itself,
  // of the 56 messages of an all-to-all of 8 ranks one would explore nearly always. The number is
  // mixed, or an operation that recurs at every 64th place would explore always or never.
  static bool explores(uint64_t number);

  // For a message of `bytes`: the faster path or, when it explores, the other one.
  Path choose(size_t bytes, bool explore);
  // A message of `bytes` took `elapsed` from the match of its header to its last byte.
  void measured(Path path, size_t bytes, Nanoseconds elapsed);

 private:
  // The fastest of the last few counts: whatever else the machine does only ever adds time.
  static constexpr size_t kRemembered = 3;
  // By powers of two; all larger messages share the last class.
  static constexpr size_t kClasses = 32;

  struct Record {
    std::array<Nanoseconds, kRemembered> times{};  // for one KiB
    size_t count = 0;
    Nanoseconds best() const;
  };
  struct SizeClass {
    std::array<Record, 2> records;  // of kChunks and kPull
  };
  SizeClass& size_class(size_t bytes);

  std::array<SizeClass, kClasses> classes_;
};

}  // namespace freescale
