#include "cpp/transport/cuda_ipc/staged_message.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace freescale::cuda {
namespace {

WordValue plus(WordValue word, uint32_t count) {
  word.value += count;
  return word;
}

}  // namespace

StagedMessage::StagedMessage(CopyQueue& queue, const StageEnd& end, std::vector<Segment> memory,
                             uint32_t first, WordValue ready, WordValue over)
    : queue_(queue),
      end_(end),
      memory_(std::move(memory)),
      bytes_(total_bytes(memory_)),
      first_(first),
      chunks_(chunks_of(bytes_)),
      ready_(ready),
      over_(over) {}

std::vector<CopyRequest> StagedMessage::requests_for(uint32_t chunk) const {
  std::vector<CopyRequest> parts(1);
  const std::vector<WordValue> ready = {ready_, plus(end_.awaited, first_ + chunk)};
  const uint64_t offset = chunk * StagingRing::kSlotBytes;
  DevicePtr slot = end_.ring->slot(first_ + chunk);
  std::vector<Segment> ranges;
  slice_segments(memory_, offset, std::min(StagingRing::kSlotBytes, bytes_ - offset), &ranges);
  for (const Segment& range : ranges) {
    const DevicePtr to = end_.fills ? slot : address_of(range);
    const DevicePtr from = end_.fills ? address_of(range) : slot;
    if (parts.back().pieces.size() == CopyRequest::kPieces) parts.emplace_back();
    parts.back().pieces.push_back({to, from, range.bytes});
    slot += range.bytes;
  }
  for (CopyRequest& part : parts) part.ready = ready;
  parts.back().done = {plus(end_.signalled, first_ + chunk)};
  // Last, so that nothing of this rank's is in use any more once it is written.
  if (chunk + 1 == chunks_) parts.back().done.push_back(over_);
  return parts;
}

bool StagedMessage::fed() const { return plus(end_.awaited, first_ + chunks_ - 1).reached(); }

Result<bool> StagedMessage::submit() {
  for (; next_chunk_ < chunks_; ++next_chunk_) {
    if (next_parts_.empty()) {
      next_parts_ = requests_for(next_chunk_);
      std::reverse(next_parts_.begin(), next_parts_.end());
    }
    for (; !next_parts_.empty(); next_parts_.pop_back()) {
      if (!queue_.has_room()) return false;
      Result<uint32_t> last = queue_.submit(std::move(next_parts_.back()));
      if (!last.ok()) return last.status();
      last_ = last.value();
      submitted_.push_back({next_chunk_, last_});
    }
  }
  return true;
}

Result<bool> StagedMessage::close(bool peer_lost) {
  for (; abandoned_ < submitted_.size(); ++abandoned_) {
    // What was abandoned moves at once, and until its slot is empty another message lies there.
    const auto& [chunk, last] = submitted_[abandoned_];
    if (end_.fills && !peer_lost && !plus(end_.awaited, first_ + chunk).reached()) return false;
    queue_.abandon(last);
  }
  return next_chunk_ < chunks_ ? signal_rest() : signal_all();
}

// Of chunks that are not in the queue yet, so that no later message is either.
Result<bool> StagedMessage::signal_rest() {
  if (!queue_.has_room()) return false;
  CopyRequest request;
  request.done = {plus(end_.signalled, first_ + chunks_ - 1)};
  Result<uint32_t> last = queue_.submit(std::move(request));
  if (!last.ok()) return last.status();
  last_ = last.value();
  return true;
}

// Of chunks that the queue may have dropped. Later messages may be behind them and wait for the
// other end, so this cannot; and theirs may be there by now, so the word never goes back.
bool StagedMessage::signal_all() {
  if (!queue_.is_over(last_)) return false;
  const WordValue end = plus(end_.signalled, first_ + chunks_ - 1);
  std::atomic<uint32_t>& word = *end.word.host;
  uint32_t seen = word.load(std::memory_order_relaxed);
  while (!has_reached(seen, end.value) &&
         !word.compare_exchange_weak(seen, end.value, std::memory_order_acq_rel)) {
  }
  return true;
}

}  // namespace freescale::cuda
