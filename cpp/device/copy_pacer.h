#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cpp/base/priority.h"
#include "cpp/device/copy_stream.h"

namespace freescale::cuda {

// Lets the chunks of copy streams go in order of priority. Since a chunk that was let go cannot be
// called back, what an urgent one waits for is the window of the less urgent.
//
// For any thread. Never calls the driver, so that it goes on whoever holds the driver's lock.
class CopyPacer {
 public:
  // By level, 0 (urgent) to 4: a chunk of the level is let go while fewer than so many chunks are
  // in flight in all streams. Two keep an engine busy while the host looks away.
  using Windows = std::array<uint32_t, kPriorityLevels>;
  static constexpr Windows kWindows = {8, 8, 4, 2, 2};

  explicit CopyPacer(const Windows& windows = kWindows) : windows_(windows) {}

  // `stream` must stay until it was removed.
  void add(CopyStream& stream, Priority priority);
  void remove(CopyStream& stream);

  // Lets go what may go now, level by level, one chunk of each stream of a level in turn. A level
  // gets nothing while a more urgent one has chunks that are ready and were not let go. Returns how
  // many chunks were let go; nobody is told when more may be, so call it again and again.
  uint32_t step();

 private:
  uint32_t in_flight();
  uint32_t release_level(std::vector<CopyStream*>& streams, uint32_t room);

  const Windows windows_;
  std::mutex mutex_;
  std::array<std::vector<CopyStream*>, kPriorityLevels> levels_;
};

}  // namespace freescale::cuda
