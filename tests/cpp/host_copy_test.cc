#include "cpp/device/host_copy.h"

#include <cstring>
#include <vector>

#include "cpp/device/segment.h"
#include "tests/cpp/check.h"

namespace freescale {
namespace {

constexpr size_t kRoom = 1 << 17;
constexpr std::byte kPoison{0xee};

// Copies `bytes` between the given misalignments and checks every byte, and those around.
void check_copy(size_t bytes, size_t from_offset, size_t to_offset, CopyMode mode) {
  static std::vector<std::byte> from(kRoom), to(kRoom);
  for (size_t i = 0; i < bytes + 256; ++i) {
    from[i] = static_cast<std::byte>(i * 7 + bytes + (i >> 8));
    to[i] = kPoison;
  }
  copy_bytes(to.data() + 64 + to_offset, from.data() + from_offset, bytes, mode);
  for (size_t i = 0; i < 64 + to_offset; ++i) CHECK(to[i] == kPoison);
  if (bytes > 0) {
    CHECK_EQ(std::memcmp(to.data() + 64 + to_offset, from.data() + from_offset, bytes), 0);
  }
  for (size_t i = 64 + to_offset + bytes; i < bytes + 256; ++i) CHECK(to[i] == kPoison);
}

TEST(copy_every_small_size_and_alignment) {
  for (const CopyMode mode : {CopyMode::kCached, CopyMode::kStreaming}) {
    for (size_t bytes = 0; bytes <= 300; ++bytes) {
      for (const size_t from : {0, 1, 7, 31}) {
        for (const size_t to : {0, 1, 16, 63}) check_copy(bytes, from, to, mode);
      }
    }
  }
}

TEST(copy_around_the_steps_of_the_vector_loops) {
  for (const CopyMode mode : {CopyMode::kCached, CopyMode::kStreaming}) {
    for (const size_t step : {512, 1024, 4096, 16384, 32768, 65000}) {
      for (const size_t bytes : {step - 129, step - 1, step, step + 1, step + 127}) {
        for (const size_t to : {0, 5, 32}) check_copy(bytes, 3, to, mode);
      }
    }
  }
}

TEST(copy_of_nothing_touches_nothing) {
  for (const CopyMode mode : {CopyMode::kCached, CopyMode::kStreaming}) {
    copy_bytes(nullptr, nullptr, 0, mode);
  }
  CHECK_GT(streaming_threshold(false), size_t{1} << 20);
  CHECK_GE(streaming_threshold(false), streaming_threshold(true));
}

TEST(segments_add_up) {
  std::byte bytes[10];
  const Segment segments[] = {{bytes, 3}, {nullptr, 0}, {bytes + 3, 7}};
  CHECK_EQ(total_bytes(segments), 10u);
  CHECK_EQ(total_bytes({}), 0u);
}

}  // namespace
}  // namespace freescale
