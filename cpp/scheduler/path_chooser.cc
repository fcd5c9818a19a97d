#include "cpp/scheduler/path_chooser.h"

#include <algorithm>
#include <bit>

namespace freescale {

Nanoseconds PathChooser::Record::best() const {
  return *std::min_element(times.begin(), times.begin() + std::min(count, kRemembered));
}

PathChooser::SizeClass& PathChooser::size_class(size_t bytes) {
  return classes_[std::min<size_t>(std::bit_width(bytes >> 10), kClasses - 1)];
}

bool PathChooser::explores(uint64_t number) {
  constexpr uint64_t kGoldenRatio =
      0x9e3779b97f4a7c15;  // Fibonacci hashing: the high bits mix best
  constexpr int kHighBits = 6;
  return number * kGoldenRatio >> (64 - kHighBits) == 0;
}

Path PathChooser::choose(size_t bytes, bool explore) {
  const SizeClass& all = size_class(bytes);
  const Record& chunks = all.records[static_cast<int>(Path::kChunks)];
  const Record& pulls = all.records[static_cast<int>(Path::kPull)];
  if (chunks.count < kRemembered) return Path::kChunks;
  if (pulls.count < kRemembered) return Path::kPull;
  const Path better = pulls.best() < chunks.best() ? Path::kPull : Path::kChunks;
  if (!explore) return better;
  return better == Path::kPull ? Path::kChunks : Path::kPull;
}

void PathChooser::measured(Path path, size_t bytes, Nanoseconds elapsed) {
  Record& record = size_class(bytes).records[static_cast<int>(path)];
  record.times[record.count++ % kRemembered] =
      elapsed * 1024 / static_cast<Nanoseconds>(std::max<size_t>(bytes, 1));
}

}  // namespace freescale
