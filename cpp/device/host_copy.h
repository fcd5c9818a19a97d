#pragma once

#include <cstddef>

namespace freescale {

enum class CopyMode {
  kCached,     // memcpy: the destination is read soon
  kStreaming,  // non-temporal stores: the destination will not fit the cache anyway
};

// memcpy with a choice of stores. Streaming stores are drained (sfence) before it returns, so a
// later release store publishes the copied bytes.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, CopyMode mode);

// From this message size on streaming stores pay: the last-level cache of this machine. Measured on
// a 32 MiB L3, 2 processes: at 8 MiB a message cached stores win by 11 %, at 64 MiB streaming ones
// by 10 % (docs/performance.md).
size_t streaming_threshold();

}  // namespace freescale
