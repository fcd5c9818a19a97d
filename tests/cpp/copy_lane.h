#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpp/device/copy_queue.h"
#include "cpp/device/pinned_words.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::testing {

// The implementations of CopyQueue.
enum class Submission { kAhead, kProxy };

// The size of the chunks of a CopyLane.
inline constexpr size_t kLaneChunk = 1000;

// Words in pinned memory, given out one by one, 0 at first. Kept for the rest of the process, as
// streams may still wait for them.
class WordPool {
 public:
  explicit WordPool(const cuda::PrimaryContext& context);
  cuda::PinnedWord next();

 private:
  struct Memory;
  Memory& memory_;
  size_t used_ = 0;
};

// A copy queue with memory at both ends that differs in every byte. The thread of the test is the
// one that drives it.
struct CopyLane {
  // `first` is where the numbers of chunks start.
  CopyLane(StandIn& stand_in, WordPool& words, Submission submission, size_t bytes,
           uint32_t first = 0);

  // A copy of everything, or of a part.
  cuda::CopyRequest request(std::vector<cuda::WordValue> ready = {}) const;
  cuda::CopyPiece piece(size_t offset, size_t bytes) const;
  // Submits a request, which must be taken.
  uint32_t submit(cuda::CopyRequest request) const;

  // Drives the queue, which must go well, until it is so.
  void drive_until(const std::function<bool()>& reached) const;
  void await_progress(uint32_t chunk) const;
  void await_drained() const;
  // Until nothing moves any more: the stream waits for the next chunk to be let go, or was handed
  // everything that was.
  void await_standstill() const;

  // What is between the offsets has arrived, or has not been touched.
  void expect_arrived(size_t from_offset, size_t to_offset) const;
  void expect_untouched(size_t from_offset, size_t to_offset) const;
  // The first bytes have arrived, and no others.
  void expect_arrived(size_t bytes) const;

  StandIn& on;
  const Submission submission;
  cuda::PinnedWord go, progress, done;
  std::string content;
  cuda::DevicePtr from = 0, to = 0;
  std::unique_ptr<cuda::CopyQueue> queue;
};

// Nothing arrives while a kernel fills the SMs, which copies within a device need: so how much is
// in flight is known.
class Standstill {
 public:
  Standstill(StandIn& stand_in, WordPool& words);
  void end() { end_.host->store(1); }

 private:
  cuda::PinnedWord end_;
};

using QueueTest = std::function<void(StandIn&, Submission)>;

// For what both implementations promise: with each version of the driver, and with engines of both
// orders.
void on_each_queue(const QueueTest& body);
// With each version and both orders, for one implementation.
void on_each_engine(Submission submission, const QueueTest& body);
// Where one queue's copies can overtake another's: as on_each_queue, without copies that were
// submitted ahead on engines with a head of line.
void on_each_overtaking_queue(const QueueTest& body);

}  // namespace freescale::testing
