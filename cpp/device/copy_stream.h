#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"
#include "cpp/device/pinned_words.h"

namespace freescale::cuda {

// One contiguous copy. Source and destination stay valid until it is over, or the stream has
// drained.
struct CopyRequest {
  DevicePtr to = 0;
  DevicePtr from = 0;
  size_t bytes = 0;
  // Who reads or writes the memory at either end writes these once it may be copied.
  std::vector<WordValue> ready;
  // Written by the stream after the last byte, and after nothing less.
  std::optional<WordValue> done;
};

// Copies that are submitted to the driver at once and move later, chunk by chunk, as the host lets
// them: each chunk waits in its stream until the word `go` has reached its number, and writes that
// number to `progress` when its bytes are there. So priority is decided by who raises `go`, which
// is a store to memory. It takes no lock of the driver, which may be held for as long as a kernel
// runs (lazy loading, full queues), and it also ends a stream's waiting when the operation is given
// up.
//
// Priorities hold on engines that take copies as they become ready. An engine that takes them in
// the order of submission is held up by the first one that was not let go.
//
// submit() and check() call the driver and are for one thread at a time. Everything else never
// does, and is for any thread.
class CopyStream {
 public:
  struct Options {
    size_t chunk_bytes = 4 << 20;
    uint32_t first = 0;  // what both words are at the start
  };

  // What both words hold from here on is this object's business: nobody else writes them. They and
  // `context` must outlive it, and the work of its stream.
  static Result<std::unique_ptr<CopyStream>> create(const PrimaryContext& context, PinnedWord go,
                                                    PinnedWord progress, Options options);
  // Does not wait: a stream that has not drained goes on as far as it was let go.
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  // Whether submit() takes another request now. A stream's queue in the driver is finite, and a
  // call that finds it full blocks while it holds the context's lock.
  bool has_room() const;

  // Enqueues a request behind those before. Needs room, and no current context; does not wait for
  // the GPU. After a failure a part of the request may move once it is let go, and no further
  // request is taken: abort() is what is left to do.
  Status submit(const CopyRequest& request);

  // An error if the stream is dead: a copy failed, or another stream of the context. Needs no
  // current context.
  Status check() const;

  // Chunks of requests that are ready, that were not let go yet.
  uint32_t releasable();
  // Lets the next `chunks` go, at most releasable().
  void release(uint32_t chunks);
  // Chunks that were let go, and whose bytes have not arrived yet.
  uint32_t in_flight();
  // Everything that was submitted is over. Never after submit() has failed: what it left in the
  // stream is not known.
  bool drained() const;

  // Ends all waiting in the stream, now and later: what is enqueued moves without regard to
  // anything, so memory it names must not be freed before drained(), or never. No request is taken
  // any more.
  void abort();

 private:
  // Chunks up to and including `last` belong to the request.
  struct Pending {
    uint32_t last;
    std::vector<WordValue> ready;
  };

  CopyStream(const PrimaryContext& context, Stream stream, PinnedWord go, PinnedWord progress,
             Options options);
  // Chunks that release() may let go. Under the mutex.
  uint32_t count_releasable();
  Status enqueue(const CopyRequest& request, size_t chunk_bytes);
  Status enqueue_chunk(const CopyRequest& request, size_t offset, size_t bytes);

  const PrimaryContext& context_;
  const Stream stream_;
  const PinnedWord go_;        // written by the host alone
  const PinnedWord progress_;  // written by the stream alone
  const size_t chunk_bytes_;

  std::atomic<uint32_t> submitted_;   // number of the last chunk; written by submit() alone
  std::atomic<bool> failed_ = false;  // submit() has
  std::atomic<bool> aborted_ = false;

  std::mutex mutex_;             // never held during a call of the driver
  std::deque<Pending> pending_;  // requests with chunks that were not let go
  uint32_t ready_;               // number of the last chunk that is ready
  uint32_t released_;            // what `go` is, unless aborted
};

}  // namespace freescale::cuda
