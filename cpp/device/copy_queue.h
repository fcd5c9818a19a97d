#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/device/cuda_driver.h"
#include "cpp/device/pinned_words.h"

namespace freescale::cuda {

// For chunks that use buffers which somebody else empties or fills: chunk i of the request, counted
// from 0, may go once `word` has reached `first + i`.
struct ChunkGate {
  PinnedWord word;
  uint32_t first = 0;
};

// Copies, cut into chunks of the size that the queue was made with: one piece after the other, so
// that a chunk holds several where they are small. Chunks move in order, what is within one in any.
// Sources and destinations stay valid until the request is over.
struct CopyRequest {
  // What no request may exceed, as a stream's queue in the driver is finite. A larger one is cut
  // into larger chunks, but for one with a gate, which is refused.
  static constexpr size_t kChunks = 64;
  static constexpr size_t kPieces = 256;
  static constexpr size_t kDoneWords = 32;

  std::vector<CopyPiece> pieces;
  // Both ends of the pieces are on one device: where the driver can, copy engines are asked for.
  bool within_device = false;
  // Who reads or writes the memory at either end writes these once it may be copied.
  std::vector<WordValue> ready;
  std::optional<ChunkGate> gate;
  // Written by the stream after the last byte, and after nothing less.
  std::vector<WordValue> done;
  // What keeps the memory valid. Let go of by the first submit() or drive() after the request is
  // over, as that may call the driver; never if it cannot be known to be over.
  std::shared_ptr<const void> keep;
};

// Copies to, or from, one peer at one level of priority, one after the other. Chunks move as they
// are let go by release(), which is the business of a CopyPacer. Chunks are numbered from 1 on
// through all requests; numbers wrap.
//
// submit() and drive() call the driver and are for one thread at a time, which may be blocked by
// whoever holds the driver's lock. Everything else never calls it, and is for any thread.
class CopyQueue {
 public:
  virtual ~CopyQueue() = default;

  // Whether submit() takes another request now.
  virtual bool has_room() const = 0;

  // Takes a request behind those before. Needs room, and no current context; does not wait for the
  // GPU. Returns the number of its last chunk. After a failure of the driver a part of the request
  // may move, and no further request is taken: abort() is what is left to do.
  virtual Result<uint32_t> submit(CopyRequest request) = 0;

  // Hands to the driver what was let go meanwhile, where that is not done by the hardware, and
  // notices a stream that is dead: a copy failed, or another stream of the context. Whether any was
  // handed over. After a failure it is as after one of submit().
  virtual Result<bool> drive() = 0;

  // Everything up to chunk `last` is over.
  virtual bool is_over(uint32_t last) const = 0;
  // Chunks of requests that are ready, that were not let go yet. None after a failure.
  virtual uint32_t releasable() = 0;
  // Lets the next `chunks` go, at most releasable().
  virtual void release(uint32_t chunks) = 0;
  // Chunks that were let go, and whose bytes have not arrived yet. None after a failure.
  virtual uint32_t in_flight() = 0;
  // Everything that was submitted is over. Never after a failure: what it left in the stream is not
  // known.
  virtual bool drained() const = 0;

  // Nobody is interested any more in the request that ends with chunk `last`: it no longer waits
  // for its words. What the driver has of it moves in its turn nevertheless, so its memory stays
  // until is_over(last); what it has not is dropped, and counts as over. Its `done` words are
  // written or not.
  virtual void abandon(uint32_t last) = 0;

  // Ends all waiting in the stream, now and later: what is enqueued moves without regard to
  // anything, so memory it names must not be freed before drained(), or never. No request is taken
  // any more.
  virtual void abort() = 0;
};

}  // namespace freescale::cuda
