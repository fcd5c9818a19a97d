#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace freescale {

// One contiguous piece of a rank's buffer, in host memory or, where that is said, at an address of
// a device. Not owned: whoever submits an operation keeps its buffers alive until the operation is
// done.
struct Segment {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

inline size_t total_bytes(std::span<const Segment> segments) {
  size_t total = 0;
  for (const Segment& segment : segments) total += segment.bytes;
  return total;
}

// Appends to `pieces` those parts of the segments that cover `bytes` from `offset` on.
void slice_segments(const std::vector<Segment>& segments, size_t offset, size_t bytes,
                    std::vector<Segment>* pieces);

}  // namespace freescale
