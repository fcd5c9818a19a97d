// Groups of every size up to nine, many groups at once, and many operations.

#include <functional>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

void all_to_all(Rank& self, const std::function<size_t(int, int)>& bytes,
                const std::shared_ptr<Group>& group = nullptr) {
  std::vector<std::vector<std::byte>> out, in;
  std::vector<Pieces> input, output;
  for (int peer = 0; peer < self.size(); ++peer) {
    out.push_back(pattern_bytes(self.rank(), peer, bytes(self.rank(), peer)));
    in.emplace_back(bytes(peer, self.rank()), std::byte{0xee});
  }
  for (auto& one : out) input.push_back(piece(one));
  for (auto& one : in) output.push_back(piece(one));
  const auto handle =
      self.start(signed_plan(plan_all_to_all(self.rank(), input, output), OpKind::kAllToAll),
                 Priority::kNormal, group);
  CHECK_OK(self.finish(*handle));
  for (int peer = 0; peer < self.size(); ++peer) {
    CHECK(in[peer] == pattern_bytes(peer, self.rank(), in[peer].size()));
  }
}

void broadcasts(Rank& self, size_t bytes) {
  for (int root = 0; root < self.size(); ++root) {
    std::vector<std::byte> buffer(bytes, std::byte{0xee});
    if (self.rank() == root) buffer = pattern_bytes(root, 0, bytes);
    CHECK_OK(self.run(signed_plan(plan_broadcast(self.rank(), self.size(), root, piece(buffer)),
                                  OpKind::kBroadcast)));
    CHECK(buffer == pattern_bytes(root, 0, bytes));
  }
}

TEST_WITHIN(group_of_every_size, 60) {
  for (const EngineOptions& mode : kModes) {
    for (int size = 1; size <= 9; ++size) {
      run_ranks(
          size,
          [](Rank& self) {
            CHECK_OK(self.barrier());
            for (const size_t bytes : {0, 1, 5000, 150'000}) {
              all_to_all(self, [bytes](int, int) { return bytes; });
            }
            all_to_all(self, [](int from, int to) { return (from * 7 + to * 3) % 5 * 20'000; });
            broadcasts(self, 100);
            broadcasts(self, 150'000);
            CHECK_OK(self.barrier());
          },
          mode);
    }
  }
}

TEST_WITHIN(group_of_processes, 60) {
  for (const EngineOptions& mode : kModes) {
    RankProcesses ranks(
        4,
        [](Rank& self, SharedStore&) {
          for (const size_t bytes : {0, 100, 1 << 20}) {
            all_to_all(self, [bytes](int, int) { return bytes; });
            broadcasts(self, bytes);
          }
          CHECK_OK(self.barrier());
        },
        mode);
    ranks.expect_success();
  }
}

TEST_WITHIN(groups_by_the_hundred_leave_nothing_behind, 60) {
  RankProcesses ranks(2, [](Rank& self, SharedStore&) {
    all_to_all(self, [](int, int) { return 1000; });
    const Footprint before = Footprint::now();
    for (int i = 0; i < 100; ++i) {
      const auto group = self.new_group("group" + std::to_string(i));
      all_to_all(self, [i](int, int) { return i * 500; }, group);
      if (i % 2 == 0) self.engine().close_group(*group, "done");
    }
    expect_footprint(before);
    CHECK_OK(self.barrier());
  });
  ranks.expect_success();
}

TEST_WITHIN(group_runs_many_small_operations, 60) {
  for (const EngineOptions& mode : kModes) {
    run_ranks(
        2,
        [](Rank& self) {
          for (int i = 0; i < 3000; ++i) CHECK_OK(self.barrier());
        },
        mode);
  }
}

// Several threads of a rank, each on a group of its own, wait at the same time: whoever moves bytes
// does so for all, and nobody who leaves forgets the others.
TEST_WITHIN(callers_from_many_threads_do_not_lose_each_other, 60) {
  for (const EngineOptions& mode : kModes) {
    run_ranks(
        2,
        [](Rank& self) {
          constexpr int kThreads = 4;
          std::vector<std::shared_ptr<Group>> groups;
          for (int i = 0; i < kThreads; ++i) {
            groups.push_back(self.new_group("thread" + std::to_string(i)));
          }
          std::vector<std::thread> threads;
          for (int i = 0; i < kThreads; ++i) {
            threads.emplace_back([&, i] {
              for (int round = 0; round < 400; ++round) {
                const size_t bytes = round % 50 == 49 ? 300'000 : 16;
                all_to_all(self, [bytes](int, int) { return bytes; }, groups[i]);
              }
            });
          }
          for (std::thread& thread : threads) thread.join();
        },
        mode);
  }
}

TEST(group_counts_beyond_32_bits) {
  run_ranks(2, [](Rank& self) {
    const auto model = self.new_group("model");
    std::vector<std::shared_ptr<Link>> links;
    for (int rank = 0; rank < self.size(); ++rank) links.push_back(model->shared_link(rank));
    const auto group = std::make_shared<Group>(model->id() + 1, "far", self.rank(),
                                               std::move(links), (uint64_t{1} << 32) - 3);
    self.engine().add_group(group);
    for (int i = 0; i < 6; ++i) all_to_all(self, [](int, int) { return 100; }, group);
    CHECK_EQ(group->last_sequence(), (uint64_t{1} << 32) + 3);
  });
}

}  // namespace
}  // namespace freescale::testing
