#include "cpp/device/chunked_copy.h"

#include <algorithm>
#include <string>

namespace freescale::cuda {
namespace {

size_t divide_up(size_t bytes, size_t parts) { return (bytes + parts - 1) / parts; }

size_t total_bytes(const std::vector<CopyPiece>& pieces) {
  size_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

Status too_many(const char* what, size_t count, size_t limit) {
  return Status::invalid_argument("a copy request of " + std::to_string(count) + " " + what +
                                  ", of at most " + std::to_string(limit));
}

}  // namespace

Result<ChunkedCopy> ChunkedCopy::cut(const CopyRequest& request, size_t chunk_bytes) {
  if (request.pieces.size() > CopyRequest::kPieces) {
    return too_many("pieces", request.pieces.size(), CopyRequest::kPieces);
  }
  if (request.done.size() > CopyRequest::kDoneWords) {
    return too_many("words", request.done.size(), CopyRequest::kDoneWords);
  }
  const size_t bytes = total_bytes(request.pieces);
  chunk_bytes = std::max(chunk_bytes, size_t{1});
  const size_t smallest = divide_up(bytes, CopyRequest::kChunks);
  if (smallest > chunk_bytes && request.gate.has_value()) {
    return too_many("chunks with a gate", divide_up(bytes, chunk_bytes), CopyRequest::kChunks);
  }
  return ChunkedCopy(request, std::max(chunk_bytes, smallest));
}

ChunkedCopy::ChunkedCopy(const CopyRequest& request, size_t chunk_bytes)
    : done_(request.done), within_device_(request.within_device) {
  size_t room = chunk_bytes;
  for (CopyPiece rest : request.pieces) {
    while (rest.bytes > 0) {
      if (room == 0) {
        ends_.push_back(copies_.size());
        room = chunk_bytes;
      }
      const size_t bytes = std::min(rest.bytes, room);
      copies_.push_back({rest.to, rest.from, bytes});
      rest = {rest.to + bytes, rest.from + bytes, rest.bytes - bytes};
      room -= bytes;
    }
  }
  ends_.push_back(copies_.size());
}

uint32_t ChunkedCopy::operations() const {
  return static_cast<uint32_t>(2 * ends_.size() + copies_.size() + done_.size());
}

Status ChunkedCopy::enqueue(const DriverStream& stream, uint32_t index, WordValue progress) const {
  const size_t begin = index == 0 ? 0 : ends_[index - 1];
  const std::span<const CopyPiece> copies(copies_.data() + begin, ends_[index] - begin);
  if (Status status = stream.copy(copies, within_device_); !status.ok()) return status;
  // Not with the copies in one batch, which has no order. A write's own fence orders it behind the
  // bytes for everybody who sees it.
  std::vector<WordValue> words;
  if (index + 1 == chunks()) words = done_;
  words.push_back(progress);
  return stream.write(words);
}

}  // namespace freescale::cuda
