#include "cpp/device/host_copy.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace freescale {
namespace {

#if defined(__x86_64__)

// 4 x 32 bytes per turn. Needs `to` aligned to 32 and `bytes` a multiple of 128.
__attribute__((target("avx"))) void stream_avx(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 128) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(in);
    const __m256i b = _mm256_loadu_si256(in + 1);
    const __m256i c = _mm256_loadu_si256(in + 2);
    const __m256i d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
    _mm256_stream_si256(out + 2, c);
    _mm256_stream_si256(out + 3, d);
  }
}

void stream_sse2(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 16) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), a);
  }
}

void copy_streaming(std::byte* to, const std::byte* from, size_t bytes) {
  static const bool has_avx = __builtin_cpu_supports("avx");
  const size_t head = (32 - reinterpret_cast<uintptr_t>(to) % 32) % 32;
  if (bytes < head + 128) {
    std::memcpy(to, from, bytes);
    return;
  }
  std::memcpy(to, from, head);
  const size_t body = (bytes - head) / 128 * 128;
  (has_avx ? stream_avx : stream_sse2)(to + head, from + head, body);
  _mm_sfence();
  std::memcpy(to + head + body, from + head + body, bytes - head - body);
}

#else

// Other processors write whole lines without reading them first when they see a long run of stores.
void copy_streaming(std::byte* to, const std::byte* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, CopyMode mode) {
  if (mode == CopyMode::kStreaming) {
    copy_streaming(to, from, bytes);
  } else if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

size_t streaming_threshold() {
  static const size_t threshold = [] {
    const long last_level = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return last_level > 0 ? static_cast<size_t>(last_level) : size_t{32} << 20;
  }();
  return threshold;
}

}  // namespace freescale
