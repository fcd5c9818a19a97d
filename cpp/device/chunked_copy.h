#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/device/copy_queue.h"
#include "cpp/device/driver_stream.h"

namespace freescale::cuda {

// What a stream has to do for a request, chunk by chunk. Immutable.
class ChunkedCopy {
 public:
  // An error if the request exceeds what one may have.
  static Result<ChunkedCopy> cut(const CopyRequest& request, size_t chunk_bytes);

  // At least 1: a request without bytes is a chunk, so that its end has its place in the order.
  uint32_t chunks() const { return static_cast<uint32_t>(ends_.size()); }
  // Operations of a stream for all chunks, with a wait for each.
  uint32_t operations() const;
  // Those of the largest request.
  static constexpr uint32_t kOperations =
      3 * CopyRequest::kChunks + CopyRequest::kPieces + CopyRequest::kDoneWords;

  // Chunk `index`, counted from 0, and the write of `progress` after it. Behind the last chunk, but
  // before its `progress`, the request's `done` words are written: who sees that it is over need
  // not expect another write. Needs the context current.
  Status enqueue(const DriverStream& stream, uint32_t index, WordValue progress) const;

 private:
  ChunkedCopy(const CopyRequest& request, size_t chunk_bytes);

  std::vector<CopyPiece> copies_;
  std::vector<size_t> ends_;  // of each chunk in copies_
  std::vector<WordValue> done_;
  bool within_device_;
};

}  // namespace freescale::cuda
