#pragma once

#include <span>

#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"
#include "cpp/device/pinned_words.h"

namespace freescale::cuda {

// A stream of the driver for copies. `context` must outlive it. All calls are the driver's, so they
// may be blocked by whoever holds its lock; none waits for the GPU unless it says so.
class DriverStream {
 public:
  // Makes the context current for itself, like the destructor.
  static Result<DriverStream> create(const PrimaryContext& context);
  DriverStream(DriverStream&& other) noexcept;
  DriverStream& operator=(DriverStream&&) = delete;
  // What was enqueued goes on.
  ~DriverStream();

  // These three enqueue, and need the context current.
  Status wait(WordValue until) const;
  // All pieces, in any order. Where the driver can, copies within a device do without SMs.
  Status copy(std::span<const CopyPiece> pieces, bool within_device) const;
  // One after the other, fewer than kMemoryOperationLimit. Who sees one of them sees everything
  // that the stream did before.
  Status write(std::span<const WordValue> words) const;

  // An error if the stream is dead: a copy failed, or another stream of the context.
  Status check() const;
  // Waits until everything that was enqueued has happened.
  Status synchronize() const;

 private:
  DriverStream(const PrimaryContext& context, Stream stream)
      : context_(&context), stream_(stream) {}

  const PrimaryContext* context_;  // null when moved from
  Stream stream_;
};

}  // namespace freescale::cuda
