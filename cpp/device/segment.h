#pragma once

#include <cstddef>
#include <span>

namespace freescale {

// One contiguous piece of a rank's buffer, in host memory. Not owned: whoever submits an operation
// keeps its buffers alive until the operation is done.
struct Segment {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

inline size_t total_bytes(std::span<const Segment> segments) {
  size_t total = 0;
  for (const Segment& segment : segments) total += segment.bytes;
  return total;
}

}  // namespace freescale
