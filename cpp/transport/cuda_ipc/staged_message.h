#pragma once

#include <cstdint>
#include <vector>

#include "cpp/device/copy_queue.h"
#include "cpp/device/segment.h"
#include "cpp/transport/cuda_ipc/staging_ring.h"

namespace freescale::cuda {

// One end of a ring: the sender's fills slots that were emptied, the receiver's empties slots that
// were filled. Two words count the chunks for which that was done.
struct StageEnd {
  const StagingRing* ring = nullptr;
  bool fills = false;
  // Chunk n may go once this word has reached its value + n...
  WordValue awaited;
  // ...and sets this one to its value + n.
  WordValue signalled;
};

// What one end of a ring does for one message: a copy for each chunk, between the rank's memory and
// the slots. For the driver's thread.
class StagedMessage {
 public:
  static uint32_t chunks_of(uint64_t bytes) {
    return static_cast<uint32_t>((bytes + StagingRing::kSlotBytes - 1) / StagingRing::kSlotBytes);
  }

  // The message lies in `memory` of this rank's device; its chunks are `first` and those that
  // follow. `ready`: the memory may be touched. `over`: written when it is done with.
  StagedMessage(CopyQueue& queue, const StageEnd& end, std::vector<Segment> memory, uint32_t first,
                WordValue ready, WordValue over);

  uint32_t first() const { return first_; }
  uint32_t chunks() const { return chunks_; }

  // Whether the other end has done all of its part that this one waits for.
  bool fed() const;
  // Submits what there is room for; false if that is not all.
  Result<bool> submit();
  // The message is given up: its memory is no longer touched once the queue has passed last(), and
  // the other end is signalled as if all chunks had been moved, so that the ring goes on. False if
  // that cannot be done yet: call it again.
  Result<bool> close(bool peer_lost);
  // The last chunk of the queue that touches this rank's memory.
  uint32_t last() const { return last_; }

 private:
  // In the order of submission.
  std::vector<CopyRequest> requests_for(uint32_t chunk) const;
  Result<bool> signal_rest();
  bool signal_all();

  CopyQueue& queue_;
  const StageEnd end_;
  const std::vector<Segment> memory_;
  const uint64_t bytes_;
  const uint32_t first_;
  const uint32_t chunks_;
  const WordValue ready_;
  const WordValue over_;
  // What is in the queue, in order: chunks of the message, and the queue's last one for each. Where
  // a chunk has too many pieces for one request, it has several.
  struct Submitted {
    uint32_t chunk;
    uint32_t last;
  };
  std::vector<Submitted> submitted_;
  size_t abandoned_ = 0;                 // of them
  uint32_t next_chunk_ = 0;              // to be submitted
  std::vector<CopyRequest> next_parts_;  // of that chunk, what is left of them in reverse
  uint32_t last_ = 0;
};

}  // namespace freescale::cuda
