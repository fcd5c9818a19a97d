#include "cpp/transport/ucx/chunk_window.h"

#include "cpp/transport/ucx/ordered_inbox.h"
#include "tests/cpp/check.h"

namespace freescale::ucx {
namespace {

constexpr size_t kChunk = 1000;
constexpr int kLevel = 2;
constexpr Nanoseconds kMicrosecond = 1000;

TEST(window_bounds_what_is_in_flight) {
  ChunkWindow window(kChunk);
  size_t chunks = 0;
  for (; window.has_room(kLevel, kChunk); ++chunks) window.note_put(kLevel, kChunk, 0);
  CHECK_EQ(chunks * kChunk, window.size());
  CHECK(window.note_taken(kLevel, kChunk, kMicrosecond));
  CHECK_EQ(window.in_flight(kLevel), (chunks - 1) * kChunk);
}

TEST(window_takes_one_chunk_that_is_larger_than_itself) {
  ChunkWindow window(kChunk);
  CHECK(window.has_room(kLevel, 1000 * kChunk));
  window.note_put(kLevel, 1000 * kChunk, 0);
  CHECK(!window.has_room(kLevel, 1));
}

// A wire that takes a chunk in `per_chunk`, and brings it there and the credit back in `delay`.
size_t window_over_wire(Nanoseconds per_chunk, Nanoseconds delay) {
  ChunkWindow window(kChunk);
  std::deque<Nanoseconds> credits;
  Nanoseconds now = 0;
  Nanoseconds wire_free = 0;
  uint64_t taken = 0;
  for (int i = 0; i < 2000; ++i) {
    while (window.has_room(kLevel, kChunk)) {
      window.note_put(kLevel, kChunk, now);
      wire_free = std::max(wire_free, now) + per_chunk;
      credits.push_back(wire_free + delay);
    }
    now = credits.front();
    credits.pop_front();
    taken += kChunk;
    CHECK(window.note_taken(kLevel, taken, now));
  }
  return window.size();
}

TEST(window_is_shared_with_what_is_more_urgent) {
  const auto fill = [](ChunkWindow& window, int level) {
    size_t chunks = 0;
    for (; window.has_room(level, kChunk); ++chunks) window.note_put(level, kChunk, 0);
    return chunks;
  };
  // Bulk holds up nothing that is more urgent.
  ChunkWindow bulk_first(kChunk);
  const size_t all = fill(bulk_first, kLevel);
  CHECK_GT(all, 2u);
  CHECK_EQ(fill(bulk_first, kLevel - 1), all);
  ChunkWindow urgent_first(kChunk);
  CHECK_EQ(fill(urgent_first, kLevel - 1), all);
  CHECK_EQ(fill(urgent_first, kLevel), 0u);
}

TEST(window_follows_the_product_of_rate_and_delay) {
  // Much delay: what is on its way at this rate, twice, and the chunk itself counts.
  const size_t far = window_over_wire(10 * kMicrosecond, 200 * kMicrosecond);
  CHECK(far >= 21 * kChunk);
  CHECK(far <= 50 * kChunk);
  // None: two chunks keep the wire busy.
  const size_t near = window_over_wire(100 * kMicrosecond, kMicrosecond);
  CHECK(near >= 2 * kChunk);
  CHECK(near <= 3 * kChunk);
}

TEST(window_refuses_credits_that_cannot_be) {
  ChunkWindow window(kChunk);
  window.note_put(kLevel, kChunk, 0);
  CHECK(!window.note_taken(kLevel, kChunk + 1, 1));
  CHECK(window.note_taken(kLevel, kChunk, 1));
  CHECK(!window.note_taken(kLevel, kChunk - 1, 2));
  CHECK_EQ(window.in_flight(kLevel), 0u);
}

TEST(inbox_restores_the_order) {
  OrderedInbox<int> inbox;
  CHECK(!inbox.add(2, 2));
  CHECK(!inbox.add(1, 1));
  CHECK(inbox.empty());
  CHECK_EQ(inbox.early(), 2u);
  CHECK(inbox.add(0, 0));
  for (int i = 0; i < 3; ++i) CHECK_EQ(inbox.take(), i);
  CHECK(inbox.empty());
  CHECK_EQ(inbox.early(), 0u);
}

TEST(inbox_passes_what_has_nothing_before_it) {
  OrderedInbox<int> inbox;
  CHECK(inbox.pass(0));
  CHECK(!inbox.pass(0));
  CHECK(!inbox.pass(2));
  CHECK(!inbox.add(2, 2));
  CHECK(inbox.pass(1));
  CHECK(!inbox.pass(3));  // 2 is ready and comes first
  CHECK(inbox.add(3, 3));
  CHECK_EQ(inbox.take(), 2);
  CHECK_EQ(inbox.take(), 3);
  CHECK(inbox.pass(4));
  CHECK(inbox.empty());
}

TEST(inbox_keeps_no_number_twice) {
  OrderedInbox<int> inbox;
  CHECK(!inbox.add(1, 10));
  CHECK(!inbox.add(1, 11));
  CHECK(inbox.add(0, 0));
  CHECK_EQ(inbox.take(), 0);
  CHECK_EQ(inbox.take(), 10);
  CHECK(inbox.empty());
  // Of the past: never delivered.
  CHECK(!inbox.add(0, 0));
  CHECK(inbox.empty());
}

}  // namespace
}  // namespace freescale::ucx
