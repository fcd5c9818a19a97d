#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/device/copy_queue.h"

namespace freescale::cuda {

// Lets the chunks of copy queues go in order of priority. Since a chunk that was let go cannot be
// called back, what an urgent one waits for is the window of the less urgent.
//
// For any thread. Never calls the driver, so that it goes on whoever holds the driver's lock.
class CopyPacer {
 public:
  // By level, 0 (urgent) to 4: a chunk of the level is let go while fewer than so many chunks are
  // in flight in all queues. Two keep an engine busy while the host looks away.
  using Windows = std::array<uint32_t, kPriorityLevels>;
  static constexpr Windows kWindows = {8, 8, 4, 2, 2};
  static constexpr Nanoseconds kAging = 100'000'000;

  explicit CopyPacer(const Windows& windows = kWindows, Nanoseconds aging = kAging)
      : windows_(windows), aging_(aging) {}

  // `queue` must stay until it was removed.
  void add(CopyQueue& queue, Priority priority);
  void remove(CopyQueue& queue);

  // Lets go what may go now, level by level, one chunk of each queue of a level in turn. A level
  // gets nothing while a more urgent one has chunks that are ready and were not let go. But a level
  // that could have let chunks go for `aging`, and has not, starves: it gets one chunk before all
  // others, in the widest of the windows; of several levels the one that waits longest is first.
  // Returns how many chunks were let go; nobody is told when more may be, so call it again and
  // again.
  uint32_t step(Nanoseconds now);

 private:
  struct Level {
    std::vector<CopyQueue*> queues;
    // Since when it has had chunks to let go, and got none. None if it has none.
    std::optional<Nanoseconds> waiting_since;

    bool has_releasable() const;
    // At most `room` chunks; returns how many.
    uint32_t release(uint32_t room);
  };

  uint32_t in_flight();
  uint32_t room_in(uint32_t window);
  uint32_t serve(Level& level, uint32_t room, Nanoseconds now);
  void look_for_waiting(Nanoseconds now);
  // Null if there is none.
  Level* longest_starving(Nanoseconds now);
  uint32_t serve_starving(Nanoseconds now);

  const Windows windows_;
  const Nanoseconds aging_;
  std::mutex mutex_;
  std::array<Level, kPriorityLevels> levels_;
};

}  // namespace freescale::cuda
