#include "cpp/transport/ucx/chunk_window.h"

#include <algorithm>

namespace freescale::ucx {

void ChunkWindow::note_put(size_t bytes, Nanoseconds now) {
  put_ += bytes;
  open_.push_back({put_, taken_, now});
}

bool ChunkWindow::note_taken(uint64_t total, Nanoseconds now) {
  if (total < taken_ || total > put_) return false;
  taken_ = total;
  while (!open_.empty() && open_.front().end <= taken_) {
    measure(open_.front(), now);
    open_.pop_front();
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
