// Ranks need not call in one order on different groups. Every pair of priorities and sizes, called
// in opposite order by two ranks, completes: nothing that one rank has not reached yet may hold
// what the other one needs.

#include <string>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

const size_t kSizes[] = {100, 400'000};

// One exchange with the other rank.
struct Exchange {
  Exchange(int rank, size_t bytes, int seed)
      : in(bytes), expected(pattern_bytes(1 - rank, seed, bytes)), rank_(rank) {
    out = pattern_bytes(rank, seed, bytes);
  }
  Plan plan() {
    std::vector<Pieces> input(2), output(2);
    input[1 - rank_] = piece(out);
    output[1 - rank_] = piece(in);
    return signed_plan(plan_all_to_all(rank_, input, output), OpKind::kAllToAll);
  }
  std::vector<std::byte> out;
  std::vector<std::byte> in;
  std::vector<std::byte> expected;

 private:
  const int rank_;
};

struct Call {
  Priority priority;
  size_t bytes;
};

std::vector<Call> every_call() {
  std::vector<Call> calls;
  for (int level = 0; level < kPriorityLevels; ++level) {
    for (const size_t bytes : kSizes) calls.push_back({priority_of_level(level), bytes});
  }
  return calls;
}

// Rank 0 calls on group A and then B, rank 1 on B and then A.
void call_in_opposite_order(Rank& self, bool last_first) {
  const std::string suffix = last_first ? "1" : "2";
  const std::shared_ptr<Group> groups[] = {self.new_group("a" + suffix),
                                           self.new_group("b" + suffix)};
  for (const Call& a : every_call()) {
    for (const Call& b : every_call()) {
      const Call* calls[] = {&a, &b};
      Exchange exchanges[] = {{self.rank(), a.bytes, 1}, {self.rank(), b.bytes, 2}};
      std::shared_ptr<Rank::Handle> handles[2];
      for (int step = 0; step < 2; ++step) {
        const int which = self.rank() == 0 ? step : 1 - step;
        handles[which] = self.start(exchanges[which].plan(), calls[which]->priority, groups[which]);
      }
      // Waits for what it called last: the other rank called that first.
      const int last = self.rank() == 0 ? 1 : 0;
      CHECK_OK(self.finish(*handles[last_first ? last : 1 - last]));
      CHECK_OK(self.finish(*handles[last_first ? 1 - last : last]));
      for (const Exchange& exchange : exchanges) CHECK(exchange.in == exchange.expected);
    }
  }
}

TEST_WITHIN(opposite_order_completes, 60) {
  run_ranks(2, [](Rank& self) {
    for (const bool last_first : {true, false}) call_in_opposite_order(self, last_first);
  });
}

TEST_WITHIN(opposite_order_completes_oversubscribed, 60) {
  run_ranks(
      2, [](Rank& self) { call_in_opposite_order(self, true); },
      EngineOptions{.oversubscribed = true});
}

// Two threads of each rank, one for each group, that block in opposite order.
TEST_WITHIN(opposite_order_of_blocking_threads_completes, 60) {
  run_ranks(2, [](Rank& self) {
    const std::shared_ptr<Group> groups[] = {self.new_group("a"), self.new_group("b")};
    const auto body = [&](int which) {
      for (int i = 0; i < 300; ++i) {
        Exchange exchange(self.rank(), i % 3 == 0 ? 200'000 : 64, which);
        const auto handle =
            self.start(exchange.plan(), priority_of_level((i + which) % 5), groups[which]);
        CHECK_OK(self.finish(*handle));
        CHECK(exchange.in == exchange.expected);
      }
    };
    std::thread other(body, 1 - self.rank());
    body(self.rank());
    other.join();
  });
}

// A flood of small unanswered messages on one group must not stand in the way of another.
TEST(opposite_order_with_a_flood_of_unposted_messages) {
  run_ranks(2, [](Rank& self) {
    const auto urgent = self.new_group("urgent");
    std::vector<std::vector<std::byte>> buffers;
    for (int i = 0; i < 200; ++i) buffers.push_back(pattern_bytes(0, i, 4000));
    std::vector<std::shared_ptr<Rank::Handle>> handles;
    const auto broadcast = [&](std::vector<std::byte>& buffer) {
      return self.start(
          signed_plan(plan_broadcast(self.rank(), 2, 0, piece(buffer)), OpKind::kBroadcast));
    };
    if (self.rank() == 0) {
      for (auto& buffer : buffers) handles.push_back(broadcast(buffer));
    }
    Exchange exchange(self.rank(), 1 << 20, 3);
    CHECK_OK(self.finish(*self.start(exchange.plan(), Priority::kUrgent, urgent)));
    CHECK(exchange.in == exchange.expected);
    if (self.rank() == 1) {
      for (auto& expected : buffers) {
        std::vector<std::byte> in(expected.size());
        CHECK_OK(self.finish(*broadcast(in)));
        CHECK(in == expected);
      }
    }
    for (const auto& handle : handles) CHECK_OK(self.finish(*handle));
  });
}

}  // namespace
}  // namespace freescale::testing
