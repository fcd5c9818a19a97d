#include "cpp/device/segment.h"

#include <algorithm>

namespace freescale {

void slice_segments(const std::vector<Segment>& segments, size_t offset, size_t bytes,
                    std::vector<Segment>* pieces) {
  for (const Segment& segment : segments) {
    if (bytes == 0) return;
    if (offset >= segment.bytes) {
      offset -= segment.bytes;
      continue;
    }
    const size_t length = std::min(bytes, segment.bytes - offset);
    pieces->push_back({segment.data + offset, length});
    bytes -= length;
    offset = 0;
  }
}

}  // namespace freescale
