#include "cpp/device/host_copy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace freescale {
namespace {

#if defined(__x86_64__)

// Below this a call of memcpy is as good: it does not get to "rep movsb".
constexpr size_t kSmall = 1024;
constexpr size_t kTurn = 128;  // bytes moved by one turn of the loops below
constexpr size_t kLine = 32;   // alignment that the stores need

// Moves `bytes`, a multiple of kTurn; `to` is aligned to kLine.
template <bool kStream>
__attribute__((target("avx"))) void move_avx(std::byte* to, const std::byte* from, size_t bytes) {
  const auto store = [](__m256i* out, __m256i value) __attribute__((target("avx"))) {
    kStream ? _mm256_stream_si256(out, value) : _mm256_store_si256(out, value);
  };
  for (size_t i = 0; i < bytes; i += kTurn) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    store(out, a);
    store(out + 1, b);
    store(out + 2, c);
    store(out + 3, d);
  }
}

template <bool kStream>
void move_sse2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 16) {
    const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    auto* out = reinterpret_cast<__m128i*>(to + i);
    kStream ? _mm_stream_si128(out, value) : _mm_store_si128(out, value);
  }
}

template <bool kStream>
void move_wide(std::byte* to, const std::byte* from, size_t bytes) {
  static const bool has_avx = __builtin_cpu_supports("avx");
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  const size_t body = (bytes - head) / kTurn * kTurn;
  const size_t done = head + body;
  std::memcpy(to, from, head);
  (has_avx ? move_avx<kStream> : move_sse2<kStream>)(to + head, from + head, body);
  if (kStream) _mm_sfence();
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, CopyMode mode) {
  if (bytes < kSmall) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  } else if (mode == CopyMode::kStreaming) {
    move_wide<true>(to, from, bytes);
  } else {
    move_wide<false>(to, from, bytes);
  }
}

#else

}  // namespace

// Other processors write whole lines without reading them first when they see a long run of stores,
// so memcpy serves both modes.
void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, CopyMode) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

#endif

size_t streaming_threshold(bool over_network) {
  constexpr size_t kOverNetwork = 4 << 20;
  static const size_t within_host = [] {
    constexpr size_t kLargest = 32 << 20;
    const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return last_level > 0 ? std::min(static_cast<size_t>(last_level), kLargest) : kLargest;
  }();
  return over_network ? std::min(kOverNetwork, within_host) : within_host;
}

}  // namespace freescale
