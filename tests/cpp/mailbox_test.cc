#include "cpp/transport/shm/mailbox.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

constexpr size_t kCapacity = 4096;

// A mailbox in this process's own memory.
struct Mailbox {
  explicit Mailbox(size_t capacity = kCapacity)
      : memory(MailboxMemory::bytes_needed(capacity) / sizeof(Line)),
        writer(bytes(), capacity),
        reader(bytes(), capacity) {}

  struct alignas(MailboxMemory::kLine) Line {
    std::byte bytes[MailboxMemory::kLine] = {};
  };
  std::byte* bytes() { return memory[0].bytes; }
  MailboxMemory::Cursors& cursors() {
    return *reinterpret_cast<MailboxMemory::Cursors*>(memory.data());
  }
  // What a hostile writer can do: any bytes at any place of the ring.
  void overwrite(size_t position, uint64_t value) {
    std::memcpy(bytes() + sizeof(MailboxMemory::Cursors) + position, &value, sizeof(value));
  }

  std::vector<Line> memory;
  MailboxWriter writer;
  MailboxReader reader;
};

std::vector<std::byte> record_of(size_t bytes, uint64_t number) {
  std::vector<std::byte> record(bytes);
  for (size_t i = 0; i < bytes; ++i) record[i] = static_cast<std::byte>(number * 7 + i * 3 + 1);
  return record;
}

bool write(Mailbox& mailbox, const std::vector<std::byte>& record) {
  return mailbox.writer.try_write(record, {});
}

void expect_next(Mailbox& mailbox, const std::vector<std::byte>& expected) {
  std::span<const std::byte> record;
  CHECK(mailbox.reader.peek(&record) == MailboxReader::Poll::kRecord);
  CHECK_EQ(record.size(), expected.size());
  CHECK(std::equal(record.begin(), record.end(), expected.begin()));
  mailbox.reader.release();
}

void expect(Mailbox& mailbox, MailboxReader::Poll poll) {
  std::span<const std::byte> record;
  CHECK_EQ(mailbox.reader.peek(&record), poll);
}

TEST(mailbox_empty_until_written) {
  Mailbox mailbox;
  expect(mailbox, MailboxReader::Poll::kEmpty);
  CHECK(write(mailbox, record_of(10, 1)));
  expect_next(mailbox, record_of(10, 1));
  expect(mailbox, MailboxReader::Poll::kEmpty);
}

TEST(mailbox_joins_head_and_segments) {
  Mailbox mailbox;
  std::vector<std::byte> whole = record_of(300, 2);
  const Segment body[] = {{whole.data() + 100, 50}, {nullptr, 0}, {whole.data() + 150, 150}};
  CHECK(mailbox.writer.try_write(std::span(whole).first(100), body));
  expect_next(mailbox, whole);
}

TEST(mailbox_peek_twice_shows_the_same_record) {
  Mailbox mailbox;
  // The second lap starts with a skip mark, which must not be passed twice.
  for (size_t bytes : {size_t{1900}, size_t{1500}, size_t{1501}}) {
    CHECK(write(mailbox, record_of(bytes, bytes)));
    std::span<const std::byte> record;
    CHECK(mailbox.reader.peek(&record) == MailboxReader::Poll::kRecord);
    expect_next(mailbox, record_of(bytes, bytes));
  }
}

TEST(mailbox_full_refuses_and_loses_nothing) {
  Mailbox mailbox;
  uint64_t count = 0;
  while (write(mailbox, record_of(56, count))) ++count;
  CHECK_EQ(count, kCapacity / MailboxMemory::kLine);
  CHECK(!write(mailbox, record_of(0, 0)));
  expect_next(mailbox, record_of(56, 0));
  CHECK(write(mailbox, record_of(56, count)));
  for (uint64_t i = 1; i <= count; ++i) expect_next(mailbox, record_of(56, i));
  expect(mailbox, MailboxReader::Poll::kEmpty);
}

TEST(mailbox_takes_the_largest_record_at_every_position) {
  Mailbox mailbox;
  const size_t largest = MailboxMemory::max_record(kCapacity);
  for (size_t line = 0; line < kCapacity / MailboxMemory::kLine; ++line) {
    CHECK(write(mailbox, record_of(largest, line)));
    expect_next(mailbox, record_of(largest, line));
    CHECK(write(mailbox, record_of(1, line)));
    expect_next(mailbox, record_of(1, line));
  }
}

TEST(mailbox_is_crowded_from_half_on) {
  Mailbox mailbox;
  for (size_t i = 0; i < kCapacity / 2 / MailboxMemory::kLine; ++i) {
    CHECK(!mailbox.writer.crowded());
    CHECK(write(mailbox, record_of(1, i)));
  }
  CHECK(!mailbox.writer.crowded());
  CHECK(write(mailbox, record_of(1, 99)));
  CHECK(mailbox.writer.crowded());
  expect_next(mailbox, record_of(1, 0));
  CHECK(!mailbox.writer.crowded());
}

TEST(mailbox_reader_learns_that_the_writer_waits) {
  Mailbox mailbox;
  CHECK(write(mailbox, record_of(1, 0)));
  CHECK(!mailbox.reader.take_writer_waits());
  uint64_t count = 1;
  while (write(mailbox, record_of(1, count))) ++count;
  expect_next(mailbox, record_of(1, 0));
  CHECK(mailbox.reader.take_writer_waits());
  CHECK(!mailbox.reader.take_writer_waits());
  CHECK(write(mailbox, record_of(1, count)));
  CHECK(!write(mailbox, record_of(1, count + 1)));
  CHECK(mailbox.reader.take_writer_waits());
}

TEST(mailbox_refuses_sizes_that_lead_out) {
  const uint64_t largest = MailboxMemory::max_record(kCapacity);
  // The size alone, one that wraps round when rounded up, and one beyond what was written.
  for (uint64_t size : {largest + 1, uint64_t{1} << 40, ~uint64_t{0} - 1, ~uint64_t{0} - 70,
                        uint64_t{57}, largest}) {
    Mailbox mailbox;
    CHECK(write(mailbox, record_of(56, 0)));
    mailbox.overwrite(0, size);
    expect(mailbox, MailboxReader::Poll::kCorrupt);
  }
}

TEST(mailbox_refuses_false_skip_marks) {
  Mailbox mailbox;
  CHECK(write(mailbox, record_of(56, 0)));
  mailbox.overwrite(0, MailboxMemory::kSkip);  // skips more than was written
  expect(mailbox, MailboxReader::Poll::kCorrupt);

  Mailbox twice;
  for (int i = 0; i < 64; ++i) CHECK(write(twice, record_of(56, i)));
  twice.overwrite(0, MailboxMemory::kSkip);  // a whole lap, back to itself
  expect(twice, MailboxReader::Poll::kCorrupt);
}

TEST(mailbox_refuses_records_across_the_end) {
  Mailbox mailbox;
  for (int i = 0; i < 63; ++i) {
    CHECK(write(mailbox, record_of(56, i)));
    expect_next(mailbox, record_of(56, i));
  }
  CHECK(write(mailbox, record_of(56, 63)));
  CHECK(write(mailbox, record_of(56, 64)));
  mailbox.overwrite(kCapacity - MailboxMemory::kLine, 57 + 8);
  expect(mailbox, MailboxReader::Poll::kCorrupt);
}

TEST(mailbox_refuses_impossible_cursors) {
  for (uint64_t written : {kCapacity + 64, ~uint64_t{0}, uint64_t{1} << 63}) {
    Mailbox mailbox;
    CHECK(write(mailbox, record_of(56, 0)));
    mailbox.cursors().written.store(written);
    expect(mailbox, MailboxReader::Poll::kCorrupt);
  }
}

// Read before it was written, or set back.
TEST(mailbox_writer_detects_impossible_cursors) {
  for (uint64_t read : {uint64_t{64}, uint64_t{2 * kCapacity}, ~uint64_t{0}}) {
    Mailbox mailbox;
    for (int i = 0; i < 64; ++i) {
      CHECK(write(mailbox, record_of(56, i)));
      if (i < 2) expect_next(mailbox, record_of(56, i));
    }
    CHECK(write(mailbox, record_of(56, 64)));  // it has seen the cursor at 128 now
    CHECK(!mailbox.writer.corrupt());
    mailbox.cursors().read.store(read);
    CHECK(write(mailbox, record_of(56, 65)));
    CHECK(!write(mailbox, record_of(56, 66)));
    CHECK(mailbox.writer.corrupt());
  }
}

// The sizes are the same on both sides: drawn from one seed.
class Sizes {
 public:
  size_t next() { return size_(random_); }

 private:
  std::mt19937_64 random_{12345};
  std::uniform_int_distribution<size_t> size_{0, 600};
};

TEST_WITHIN(mailbox_concurrent_writer_and_reader, 60) {
  constexpr uint64_t kRecords = 200'000;
  Mailbox mailbox;
  std::thread writer([&] {
    Sizes sizes;
    for (uint64_t i = 0; i < kRecords; ++i) {
      const std::vector<std::byte> record = record_of(sizes.next(), i);
      while (!write(mailbox, record)) std::this_thread::yield();
    }
  });
  Sizes sizes;
  std::span<const std::byte> record;
  for (uint64_t i = 0; i < kRecords; ++i) {
    const std::vector<std::byte> expected = record_of(sizes.next(), i);
    MailboxReader::Poll poll;
    while ((poll = mailbox.reader.peek(&record)) == MailboxReader::Poll::kEmpty) {
      std::this_thread::yield();
    }
    CHECK_EQ(poll, MailboxReader::Poll::kRecord);
    CHECK(std::equal(record.begin(), record.end(), expected.begin(), expected.end()));
    mailbox.reader.release();
  }
  writer.join();
  expect(mailbox, MailboxReader::Poll::kEmpty);
}

}  // namespace
}  // namespace freescale
