#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/device/chunked_copy.h"
#include "cpp/device/copy_queue.h"
#include "cpp/device/pinned_words.h"

namespace freescale::cuda {

struct ChunkOptions {
  size_t chunk_bytes = 4 << 20;
  uint32_t first = 0;  // what the queue's words are at the start
};

// The chunks of a CopyQueue by number, and how far each is: added, ready, released, handed to the
// driver, over. Keeps no more than that: never calls the driver, and knows nothing of copies. For
// all threads, but for what is said to belong to the one that calls the driver.
//
// A stream writes the number of each chunk that it has finished to `progress`. Chunks that were
// dropped before they were handed over are never written, and count as over once those before are.
class ChunkLedger {
 public:
  ChunkLedger(PinnedWord progress, uint32_t first);
  // What a stream may still use is kept for ever.
  ~ChunkLedger();
  ChunkLedger(const ChunkLedger&) = delete;
  ChunkLedger& operator=(const ChunkLedger&) = delete;

  // Takes `ready`, `gate` and `keep` of the request. `handed_over`: the driver has all its chunks
  // already. For the thread that calls the driver, like the next five.
  uint32_t add(CopyRequest&& request, const ChunkedCopy& copy, bool handed_over);
  // An error if no request may be added now.
  Status admit() const;
  // The number of the last chunk that was added.
  uint32_t last() const;
  // The next chunk that was released and not handed over, which thereby is. None after a failure.
  std::optional<uint32_t> claim();
  // Handing over has failed, of what was claimed or of a request that was not added: what the
  // stream will do with the memory of either is not known.
  void fail(std::shared_ptr<const void> keep = nullptr);
  // Lets go of the memory of requests that are over.
  void let_go();

  // As in CopyQueue.
  bool has_room() const;
  bool is_over(uint32_t last) const;
  uint32_t releasable();
  // Returns the number of the last chunk that was released so far.
  uint32_t release(uint32_t chunks);
  uint32_t in_flight();
  bool drained() const;
  void abandon(uint32_t last);
  // All requests are abandoned, and no further one is admitted.
  void close();

 private:
  // A request that is not over: chunks after `before` up to `last`, those after `cut` dropped.
  struct Open {
    uint32_t before = 0;
    uint32_t cut = 0;
    uint32_t last = 0;
    uint32_t operations = 0;
    std::vector<WordValue> ready;  // empty once all were reached
    std::optional<ChunkGate> gate;
    std::shared_ptr<const void> keep;

    // The last chunk that its words let pass.
    uint32_t ready_up_to();
  };

  // All under the mutex.
  bool has_room_now() const;
  uint32_t count_over() const;
  void update();
  // Chunks after `from` up to `to` that were not dropped.
  uint32_t count(uint32_t from, uint32_t to) const;
  // `number`, or the last of the dropped chunks that it is one of, or right before.
  uint32_t past_dropped(uint32_t number) const;
  void drop(Open& request);

  const PinnedWord progress_;  // written by the stream alone

  mutable std::mutex mutex_;  // never held while something is let go of
  std::deque<Open> open_;
  std::vector<std::shared_ptr<const void>> finished_;  // what requests kept that are over
  std::vector<std::shared_ptr<const void>> lost_;      // what those kept that failed
  bool failed_ = false;
  bool closed_ = false;
  // Numbers of the last chunk that is over, was handed over, was released, is ready, was added.
  // None is behind `over_`.
  uint32_t over_;
  uint32_t handed_;
  uint32_t released_;
  uint32_t ready_;
  uint32_t added_;
};

}  // namespace freescale::cuda
