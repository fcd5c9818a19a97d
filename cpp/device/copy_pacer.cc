#include "cpp/device/copy_pacer.h"

#include <algorithm>

namespace freescale::cuda {

void CopyPacer::add(CopyQueue& queue, Priority priority) {
  const std::lock_guard lock(mutex_);
  levels_[static_cast<size_t>(priority_level(priority))].queues.push_back(&queue);
}

void CopyPacer::remove(CopyQueue& queue) {
  const std::lock_guard lock(mutex_);
  for (Level& level : levels_) std::erase(level.queues, &queue);
}

bool CopyPacer::Level::has_releasable() const {
  return std::any_of(queues.begin(), queues.end(),
                     [](CopyQueue* queue) { return queue->releasable() > 0; });
}

uint32_t CopyPacer::Level::release(uint32_t room) {
  uint32_t released = 0;
  bool progress = true;
  while (progress && released < room) {
    progress = false;
    for (CopyQueue* queue : queues) {
      if (released == room || queue->releasable() == 0) continue;
      queue->release(1);
      ++released;
      progress = true;
    }
  }
  // The next one begins next time, or a small window would always serve the same.
  if (released > 0) std::rotate(queues.begin(), queues.begin() + 1, queues.end());
  return released;
}

uint32_t CopyPacer::in_flight() {
  uint32_t chunks = 0;
  for (const Level& level : levels_) {
    for (CopyQueue* queue : level.queues) chunks += queue->in_flight();
  }
  return chunks;
}

uint32_t CopyPacer::room_in(uint32_t window) {
  const uint32_t open = in_flight();
  return window > open ? window - open : 0;
}

uint32_t CopyPacer::serve(Level& level, uint32_t room, Nanoseconds now) {
  const uint32_t released = level.release(room);
  if (released > 0) level.waiting_since = now;
  return released;
}

void CopyPacer::look_for_waiting(Nanoseconds now) {
  for (Level& level : levels_) {
    if (!level.has_releasable()) {
      level.waiting_since.reset();
    } else if (!level.waiting_since.has_value()) {
      level.waiting_since = now;
    }
  }
}

CopyPacer::Level* CopyPacer::longest_starving(Nanoseconds now) {
  Level* longest = nullptr;
  for (Level& level : levels_) {
    if (!level.waiting_since.has_value() || now - *level.waiting_since < aging_) continue;
    if (longest == nullptr || *level.waiting_since < *longest->waiting_since) longest = &level;
  }
  return longest;
}

uint32_t CopyPacer::serve_starving(Nanoseconds now) {
  const uint32_t widest = *std::max_element(windows_.begin(), windows_.end());
  uint32_t released = 0;
  // Each level once, whatever other threads do to its queues meanwhile.
  for (size_t turns = 0; turns < levels_.size() && room_in(widest) > 0; ++turns) {
    Level* const level = longest_starving(now);
    if (level == nullptr) break;
    released += serve(*level, 1, now);
  }
  return released;
}

uint32_t CopyPacer::step(Nanoseconds now) {
  const std::lock_guard lock(mutex_);
  look_for_waiting(now);
  uint32_t released = serve_starving(now);
  for (size_t level = 0; level < levels_.size(); ++level) {
    released += serve(levels_[level], room_in(windows_[level]), now);
    if (levels_[level].has_releasable()) break;
  }
  return released;
}

}  // namespace freescale::cuda
