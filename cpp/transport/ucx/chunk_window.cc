#include "cpp/transport/ucx/chunk_window.h"

#include <algorithm>

namespace freescale::ucx {

bool ChunkWindow::has_room(int level, size_t bytes) const {
  size_t ahead = 0;
  for (int each = 0; each <= level; ++each) ahead += in_flight(each);
  return ahead == 0 || ahead + bytes <= size_;
}

void ChunkWindow::note_put(int level, size_t bytes, Nanoseconds now) {
  Level& one = levels_[level];
  one.put += bytes;
  one.open.push_back({one.put, taken_, now});
}

bool ChunkWindow::note_taken(int level, uint64_t total, Nanoseconds now) {
  Level& one = levels_[level];
  if (total < one.taken || total > one.put) return false;
  taken_ += total - one.taken;
  one.taken = total;
  while (!one.open.empty() && one.open.front().end <= total) {
    measure(one.open.front(), now);
    one.open.pop_front();
  }
  return true;
}

// The rate is what was taken between a chunk's going and its credit's coming, as in BBR
// (draft-ietf-ccwg-bbr, delivery rate): it rises at once and falls slowly, since an application
// that puts little must not make the window small.
void ChunkWindow::measure(const Put& put, Nanoseconds now) {
  const Nanoseconds took = std::max<Nanoseconds>(now - put.at, 1);
  if (shortest_ == 0 || took < shortest_ || now - shortest_at_ > kForget) {
    shortest_ = took;
    shortest_at_ = now;
  }
  const double rate = static_cast<double>(taken_ - put.taken_then) / static_cast<double>(took);
  rate_ = rate > rate_ ? rate : rate_ + (rate - rate_) / 64;
  const auto wanted = static_cast<size_t>(2 * rate_ * static_cast<double>(shortest_));
  size_ = std::clamp(wanted, least_, most_);
}

}  // namespace freescale::ucx
