#include "cpp/transport/cuda_ipc/staged_message.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace freescale::cuda {
namespace {

uint64_t total(const std::vector<DeviceRange>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), uint64_t{0},
                         [](uint64_t sum, const DeviceRange& range) { return sum + range.bytes; });
}

// The part of the memory that holds `bytes` from `offset` on.
std::vector<DeviceRange> slice(const std::vector<DeviceRange>& memory, uint64_t offset,
                               uint64_t bytes) {
  std::vector<DeviceRange> part;
  for (const DeviceRange& range : memory) {
    if (offset >= range.bytes) {
      offset -= range.bytes;
      continue;
    }
    const uint64_t length = std::min(bytes, range.bytes - offset);
    if (length > 0) part.push_back({range.address + offset, length});
    bytes -= length;
    offset = 0;
  }
  return part;
}

WordValue plus(WordValue word, uint32_t count) {
  word.value += count;
  return word;
}

}  // namespace

StagedMessage::StagedMessage(CopyQueue& queue, const StageEnd& end, std::vector<DeviceRange> memory,
                             uint32_t first, WordValue ready, WordValue over)
    : queue_(queue),
      end_(end),
      memory_(std::move(memory)),
      bytes_(total(memory_)),
      first_(first),
      chunks_(chunks_of(bytes_)),
      ready_(ready),
      over_(over) {}

CopyRequest StagedMessage::request_for(uint32_t chunk) const {
  CopyRequest request;
  const uint64_t offset = chunk * StagingRing::kSlotBytes;
  DevicePtr slot = end_.ring->slot(first_ + chunk);
  for (const DeviceRange& range :
       slice(memory_, offset, std::min(StagingRing::kSlotBytes, bytes_ - offset))) {
    const DevicePtr to = end_.fills ? slot : range.address;
    const DevicePtr from = end_.fills ? range.address : slot;
    request.pieces.push_back({to, from, range.bytes});
    slot += range.bytes;
  }
  request.ready = {ready_, plus(end_.awaited, first_ + chunk)};
  request.done = {plus(end_.signalled, first_ + chunk)};
  // Last, so that nothing of this rank's is in use any more once it is written.
  if (chunk + 1 == chunks_) request.done.push_back(over_);
  return request;
}

bool StagedMessage::fed() const { return plus(end_.awaited, first_ + chunks_ - 1).reached(); }

Result<bool> StagedMessage::submit() {
  while (submitted_.size() < chunks_) {
    if (!queue_.has_room()) return false;
    Result<uint32_t> last = queue_.submit(request_for(static_cast<uint32_t>(submitted_.size())));
    if (!last.ok()) return last.status();
    last_ = last.value();
    submitted_.push_back(last_);
  }
  return true;
}

Result<bool> StagedMessage::close() {
  for (uint32_t last : submitted_) queue_.abandon(last);
  if (!queue_.has_room()) return false;
  CopyRequest request;
  request.done = {plus(end_.signalled, first_ + chunks_ - 1)};
  Result<uint32_t> last = queue_.submit(std::move(request));
  if (!last.ok()) return last.status();
  last_ = last.value();
  return true;
}

}  // namespace freescale::cuda
