#include "cpp/transport/shm/mailbox.h"

#include <cstring>

#include "cpp/base/foreign.h"
#include "cpp/device/host_copy.h"

namespace freescale {

void MailboxWriter::look_at_reader() {
  const uint64_t read = cursors_->read.load(std::memory_order_acquire);
  // It goes forward, and no further than what was written.
  corrupt_ = corrupt_ || read - known_read_ > written_ - known_read_;
  if (!corrupt_) known_read_ = read;
}

bool MailboxWriter::has_room(size_t bytes) {
  if (written_ + bytes - known_read_ <= capacity_) return true;
  look_at_reader();
  if (written_ + bytes - known_read_ <= capacity_) return true;
  // Look again after the wish is out: the reader may have made room before it could see it.
  if (cursors_->writer_waits.load(std::memory_order_relaxed) == 0) {
    cursors_->writer_waits.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  look_at_reader();
  return written_ + bytes - known_read_ <= capacity_;
}

bool MailboxWriter::try_write(std::span<const std::byte> head, std::span<const Segment> body) {
  const uint64_t size = head.size() + total_bytes(body);
  const size_t needed = footprint(size);
  const size_t left = bytes_to_end(written_);
  const size_t skip = left < needed ? left : 0;
  if (!has_room(skip + needed)) return false;
  if (skip > 0) {
    std::memcpy(at(written_), &kSkip, sizeof(kSkip));
    written_ += skip;
  }
  std::byte* out = at(written_);
  std::memcpy(out, &size, sizeof(size));
  out += sizeof(size);
  if (!head.empty()) std::memcpy(out, head.data(), head.size());
  out += head.size();
  for (const Segment& segment : body) {
    copy_bytes(out, segment.data, segment.bytes, CopyMode::kCached);
    out += segment.bytes;
  }
  written_ += needed;
  cursors_->written.store(written_, std::memory_order_release);
  return true;
}

MailboxReader::Poll MailboxReader::peek(std::span<const std::byte>* record) {
  if (read_ == known_written_) {
    known_written_ = cursors_->written.load(std::memory_order_acquire);
    if (read_ == known_written_) return Poll::kEmpty;
  }
  auto size = copy_of_foreign<uint64_t>(at(read_));
  if (size == kSkip) {
    read_ += bytes_to_end(read_);
    size = copy_of_foreign<uint64_t>(at(read_));
  }
  // The writer is another process: trust nothing that could lead out of the ring.
  if (size > max_record(capacity_) || footprint(size) > bytes_to_end(read_) ||
      read_ + footprint(size) > known_written_ || known_written_ - read_ > capacity_) {
    return Poll::kCorrupt;
  }
  current_ = footprint(size);
  *record = {at(read_) + sizeof(size), size};
  return Poll::kRecord;
}

void MailboxReader::release() {
  read_ += current_;
  cursors_->read.store(read_, std::memory_order_release);
}

bool MailboxReader::take_writer_waits() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (cursors_->writer_waits.load(std::memory_order_relaxed) == 0) return false;
  cursors_->writer_waits.store(0, std::memory_order_relaxed);
  return true;
}

}  // namespace freescale
