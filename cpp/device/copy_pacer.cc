#include "cpp/device/copy_pacer.h"

#include <algorithm>

namespace freescale::cuda {
namespace {

bool has_releasable(const std::vector<CopyStream*>& streams) {
  return std::any_of(streams.begin(), streams.end(),
                     [](CopyStream* stream) { return stream->releasable() > 0; });
}

}  // namespace

void CopyPacer::add(CopyStream& stream, Priority priority) {
  const std::lock_guard lock(mutex_);
  levels_[static_cast<size_t>(priority_level(priority))].push_back(&stream);
}

void CopyPacer::remove(CopyStream& stream) {
  const std::lock_guard lock(mutex_);
  for (auto& streams : levels_) std::erase(streams, &stream);
}

uint32_t CopyPacer::in_flight() {
  uint32_t chunks = 0;
  for (const auto& streams : levels_) {
    for (CopyStream* stream : streams) chunks += stream->in_flight();
  }
  return chunks;
}

uint32_t CopyPacer::release_level(std::vector<CopyStream*>& streams, uint32_t room) {
  uint32_t released = 0;
  bool progress = true;
  while (progress && released < room) {
    progress = false;
    for (CopyStream* stream : streams) {
      if (released == room || stream->releasable() == 0) continue;
      stream->release(1);
      ++released;
      progress = true;
    }
  }
  // The next one begins next time, or a small window would always serve the same.
  if (released > 0) std::rotate(streams.begin(), streams.begin() + 1, streams.end());
  return released;
}

uint32_t CopyPacer::step() {
  const std::lock_guard lock(mutex_);
  uint32_t released = 0;
  for (size_t level = 0; level < levels_.size(); ++level) {
    const uint32_t open = in_flight();
    const uint32_t room = windows_[level] > open ? windows_[level] - open : 0;
    released += release_level(levels_[level], room);
    if (has_releasable(levels_[level])) break;
  }
  return released;
}

}  // namespace freescale::cuda
