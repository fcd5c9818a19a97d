#include "cpp/scheduler/path_chooser.h"

#include "tests/cpp/check.h"

namespace freescale {
namespace {

constexpr size_t kBytes = 1 << 20;

// Sends `messages` of the size, every 16th of which explores, where each path takes its given time;
// returns how many were read.
int count_pulls(PathChooser& chooser, size_t bytes, int messages, Nanoseconds chunks,
                Nanoseconds pull) {
  int pulls = 0;
  for (int i = 0; i < messages; ++i) {
    const Path path = chooser.choose(bytes, i % 16 == 15);
    if (path == Path::kPull) ++pulls;
    chooser.measured(path, bytes, path == Path::kPull ? pull : chunks);
  }
  return pulls;
}

TEST(path_chooser_takes_the_faster_one_and_keeps_looking_at_the_other) {
  PathChooser chooser;
  count_pulls(chooser, kBytes, 50, 100'000, 50'000);
  const int fast_pulls = count_pulls(chooser, kBytes, 160, 100'000, 50'000);
  CHECK_EQ(fast_pulls, 150);
  PathChooser other;
  count_pulls(other, kBytes, 50, 50'000, 100'000);
  const int slow_pulls = count_pulls(other, kBytes, 160, 50'000, 100'000);
  CHECK_EQ(slow_pulls, 10);
}

TEST(path_chooser_explores_in_few_operations_wherever_they_recur) {
  // An operation that is called once in `stride` calls, as in a training step of so many.
  for (const uint64_t stride : {1, 2, 8, 10, 63, 64, 65, 128}) {
    int explored = 0;
    for (uint64_t call = 0; call < 6400; ++call) explored += PathChooser::explores(call * stride);
    CHECK_GE(explored, 90);
    CHECK_LE(explored, 110);
  }
}

TEST(path_chooser_notices_when_the_machine_changes) {
  PathChooser chooser;
  count_pulls(chooser, kBytes, 200, 100'000, 50'000);
  count_pulls(chooser, kBytes, 200, 20'000, 50'000);
  CHECK_LE(count_pulls(chooser, kBytes, 160, 20'000, 50'000), 20);
}

TEST(path_chooser_decides_by_size) {
  PathChooser chooser;
  for (int round = 0; round < 50; ++round) {
    count_pulls(chooser, 16 << 10, 1, 1'000, 10'000);
    count_pulls(chooser, 64 << 20, 1, 20'000'000, 10'000'000);
  }
  CHECK_LE(count_pulls(chooser, 16 << 10, 100, 1'000, 10'000), 15);
  CHECK_GE(count_pulls(chooser, 64 << 20, 100, 20'000'000, 10'000'000), 85);
}

TEST(path_chooser_ignores_a_single_slow_message) {
  PathChooser chooser;
  count_pulls(chooser, kBytes, 50, 100'000, 50'000);
  chooser.measured(Path::kPull, kBytes, 1'000'000'000);
  CHECK_GE(count_pulls(chooser, kBytes, 32, 100'000, 50'000), 28);
}

TEST(path_chooser_takes_every_size) {
  PathChooser chooser;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1} << 40, ~size_t{0}}) {
    count_pulls(chooser, bytes, 20, 1'000, 1'000);
  }
}

}  // namespace
}  // namespace freescale
