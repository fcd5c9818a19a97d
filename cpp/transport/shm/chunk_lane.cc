#include "cpp/transport/shm/chunk_lane.h"

#include "cpp/base/foreign.h"
#include "cpp/device/host_copy.h"

namespace freescale {

ChunkLaneWriter::ChunkLaneWriter(std::byte* memory, ChunkGeometry geometry)
    : ChunkLaneMemory(memory, geometry) {
  for (uint32_t i = geometry.chunks; i > 0; --i) free_.push_back(i - 1);
}

void ChunkLaneWriter::collect_returned() {
  ReturnQueue& queue = queues_->returned;
  const uint32_t written = queue.written.load(std::memory_order_acquire);
  corrupt_ = corrupt_ || written - returned_seen_ > geometry_.chunks;
  for (; !corrupt_ && returned_seen_ != written; ++returned_seen_) {
    const auto index = copy_of_foreign<uint32_t>(&queue.slots[returned_seen_ % kMaxChunks]);
    corrupt_ = index >= geometry_.chunks || !lent_.test(index);
    if (corrupt_) return;
    lent_.reset(index);
    free_.push_back(index);
  }
}

bool ChunkLaneWriter::can_put(int level) {
  const size_t kept = level <= priority_level(Priority::kHigh) ? 0 : kReserved;
  if (free_.size() <= kept + 1) collect_returned();
  if (free_.size() > kept) return true;
  // Look again after the wish is out: the reader may have returned a slot before it could see it.
  std::atomic<uint32_t>& waits = queues_->returned.writer_waits;
  if (waits.load(std::memory_order_relaxed) == 0) {
    waits.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  collect_returned();
  return free_.size() > kept;
}

bool ChunkLaneWriter::try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) {
  if (!can_put(level)) return false;
  // The most recently returned slot is the warmest.
  collect_returned();
  const uint32_t index = free_.back();
  free_.pop_back();
  lent_.set(index);
  std::byte* out = slot(index);
  for (const Segment& piece : pieces) {
    copy_bytes(out, piece.data, piece.bytes, CopyMode::kCached);
    out += piece.bytes;
  }
  FilledQueue& queue = queues_->filled[level];
  Filled& entry = queue.entries[written_[level] % kMaxChunks];
  entry = {tag, index, static_cast<uint32_t>(out - slot(index))};
  queue.written.store(++written_[level], std::memory_order_release);
  return true;
}

ChunkLaneReader::Poll ChunkLaneReader::poll(int level, LinkSink& sink) {
  FilledQueue& queue = queues_->filled[level];
  const uint32_t waiting = queue.written.load(std::memory_order_acquire) - read_[level];
  if (waiting == 0) return Poll::kEmpty;
  if (waiting > geometry_.chunks) return Poll::kCorrupt;
  const auto entry = copy_of_foreign<Filled>(&queue.entries[read_[level] % kMaxChunks]);
  if (entry.slot >= geometry_.chunks || entry.bytes > geometry_.chunk_bytes) return Poll::kCorrupt;
  sink.on_chunk(entry.tag, {slot(entry.slot), entry.bytes});
  ++read_[level];
  ReturnQueue& back = queues_->returned;
  back.slots[returned_ % kMaxChunks] = entry.slot;
  back.written.store(++returned_, std::memory_order_release);
  return Poll::kChunk;
}

bool ChunkLaneReader::take_writer_waits() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<uint32_t>& waits = queues_->returned.writer_waits;
  if (waits.load(std::memory_order_relaxed) == 0) return false;
  waits.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace freescale
