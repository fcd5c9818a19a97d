#pragma once

#include <cstddef>

namespace freescale {

enum class CopyMode {
  kCached,     // memcpy: the destination is read soon
  kStreaming,  // non-temporal stores: the destination will not fit the cache anyway
};

// memcpy with a choice of stores, in plain vector moves. glibc's memcpy uses "rep movsb" between a
// few KiB and the size of L2, which AMD's Zen 3 runs 17 times slower when the destination lies a
// few bytes further into its page than the source (128 KiB at +16: 45.9 us against 2.7 us), as
// pieces of ragged splits often do.
//
// Streaming stores are drained (sfence) before it returns, so a
// later release store publishes the copied bytes.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, CopyMode mode);

// From so many bytes landed by one operation on, streaming stores pay: the last-level cache of this
// machine, but no more than 32 MiB of it, since large ones are shared by many cores and, on a
// cloud's host, by other guests. Measured (docs/performance.md): 32 MiB L3, 2 processes: at 8 MiB
// cached stores win by 11 %, at 64 MiB streaming ones by 10 %; a guest that is shown 480 MiB: at 16
// MiB cached stores win by 8 %, at 24 MiB streaming ones by 18 %, at 64 MiB by 25 %.
//
// With messages over the network in it, from 4 MiB on: their bytes pass through the caches in
// buffers of the kernel's and of UCX's before. Measured over TCP, 2 ranks: 5 % of the time saved at
// 2 MiB, 15 to 18 % at 4 to 16 MiB.
size_t streaming_threshold(bool over_network);

}  // namespace freescale
