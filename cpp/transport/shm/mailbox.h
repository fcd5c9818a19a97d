#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cpp/device/segment.h"

namespace freescale {

// A ring of records in shared memory, one writer and one reader, in different processes. Each end
// is an object of its own over the same memory.
//
// Layout: Cursors, then `capacity` bytes (a power of two). A record is an 8-byte size and its
// bytes, padded to whole cache lines; one that would cross the end is preceded by a skip mark.
class MailboxMemory {
 public:
  static constexpr size_t kLine = 64;
  static constexpr uint64_t kSkip = ~uint64_t{0};

  struct Cursors {
    alignas(kLine) std::atomic<uint64_t> written;  // total bytes, by the writer
    std::atomic<uint32_t> writer_waits;            // set by the writer, cleared by the reader
    alignas(kLine) std::atomic<uint64_t> read;     // total bytes, by the reader
  };

  MailboxMemory(std::byte* memory, size_t capacity)
      : cursors_(reinterpret_cast<Cursors*>(memory)),
        data_(memory + sizeof(Cursors)),
        capacity_(capacity) {}

  static size_t bytes_needed(size_t capacity) { return sizeof(Cursors) + capacity; }
  // The largest record that fits whatever the cursors are: a skip of the same size may precede it.
  static size_t max_record(size_t capacity) { return capacity / 2 - kLine; }

 protected:
  static size_t footprint(size_t record_bytes) {
    return (sizeof(uint64_t) + record_bytes + kLine - 1) / kLine * kLine;
  }
  std::byte* at(uint64_t position) const { return data_ + (position & (capacity_ - 1)); }
  size_t bytes_to_end(uint64_t position) const { return capacity_ - (position & (capacity_ - 1)); }

  Cursors* cursors_;
  std::byte* data_;
  size_t capacity_;
};

class MailboxWriter : public MailboxMemory {
 public:
  using MailboxMemory::MailboxMemory;

  // Appends `head` and `body` as one record; false when there is no room now. Then the reader
  // learns from take_writer_waits() that somebody is to be told of room.
  bool try_write(std::span<const std::byte> head, std::span<const Segment> body);
  // Whether the reader's cursor made no sense; no room is gained from it any more.
  bool corrupt() const { return corrupt_; }
  // More than half of the ring waits for the reader: it should be woken even if it has nothing to
  // wait for, or it would not drain.
  bool crowded() const {
    if (written_ - known_read_ <= capacity_ / 2) return false;
    return written_ - cursors_->read.load(std::memory_order_relaxed) > capacity_ / 2;
  }

 private:
  void look_at_reader();
  bool has_room(size_t bytes);

  bool corrupt_ = false;
  uint64_t written_ = 0;
  uint64_t known_read_ = 0;  // a lower bound of the reader's cursor: saves touching its line
};

class MailboxReader : public MailboxMemory {
 public:
  using MailboxMemory::MailboxMemory;

  enum class Poll { kEmpty, kRecord, kCorrupt };
  // The next record stays valid until release().
  Poll peek(std::span<const std::byte>* record);
  void release();
  // After release(): whether the writer found no room since this was last true.
  bool take_writer_waits();

 private:
  uint64_t read_ = 0;
  uint64_t known_written_ = 0;
  size_t current_ = 0;  // footprint of the record that peek() handed out
};

}  // namespace freescale
