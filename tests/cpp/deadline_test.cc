// Timeouts: who is named, who is told, and that the group goes on.

#include <atomic>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

constexpr size_t kSmall = 100;
constexpr size_t kLarge = 1 << 20;
// Far above every timeout here, below that of the other operations.
constexpr std::chrono::seconds kPatience(10);

TEST(deadline_names_the_ranks_that_are_missing) {
  for (const EngineOptions& mode : kModes) {
    for (size_t bytes : {kSmall, kLarge}) {
      std::atomic<int> over{0};
      run_ranks(
          4,
          [bytes, &over](Rank& self) {
            Buffers buffers(self.rank(), self.size(), bytes);
            if (self.rank() < 2) {  // 2 and 3 never call it
              const auto handle = self.start(buffers.plan(self.rank()), Priority::kNormal, nullptr,
                                             0, milliseconds(200));
              const Status status = self.finish(*handle);
              over.fetch_add(1);
              const std::string& text = status.message();
              // Whoever is first gives up; the other one hears of it.
              CHECK(status.code() == StatusCode::kTimedOut ||
                    status.code() == StatusCode::kCancelled);
              expect_text(text, " Timed out after 200 ms waiting for ");
              expect_text(text, "rank 2 (it has not called it), rank 3 (it has not called it)");
              expect_text(text, "all_to_all #1 of group 'world'");
            } else {
              await([&] { return over.load() == 2; });
              const Status status = self.run(buffers.plan(self.rank()));
              CHECK_EQ(status.code(), StatusCode::kCancelled);
              expect_text(status.message(), "gave it up");
              expect_text(status.message(), " Timed out ");
            }
            // The group goes on.
            CHECK_OK(self.run(buffers.plan(self.rank())));
            CHECK_OK(self.barrier());
          },
          mode);
    }
  }
}

TEST(deadline_of_a_receive_from_anyone) {
  run_ranks(2, [](Rank& self) {
    if (self.rank() == 0) {
      std::vector<std::byte> in(kSmall);
      const auto handle =
          self.start(signed_plan(plan_receive(kAnySource, piece(in)), OpKind::kRecv),
                     Priority::kNormal, nullptr, 5, milliseconds(100));
      const Status status = self.finish(*handle);
      CHECK_EQ(status.code(), StatusCode::kTimedOut);
      expect_text(status.message(), "recv with tag 5 of group 'world' Timed out after 100 ms");
      expect_text(status.message(), "any rank");
    }
    CHECK_OK(self.barrier());
  });
}

// A rank that is busy with other traffic all the time must see the timeout all the same.
TEST(deadline_holds_while_other_traffic_flows) {
  for (const EngineOptions& mode : kModes) {
    run_ranks(
        2,
        [](Rank& self) {
          // Goes on until the timeout is seen; rank 0 says with its bytes which one is the last.
          const auto busy = self.new_group("busy");
          const Deadline limit = Deadline::after(kPatience);
          std::vector<std::byte> in(kSmall);
          const Nanoseconds start = now_ns();
          std::shared_ptr<Rank::Handle> lonely;
          if (self.rank() == 0) {
            lonely = self.start(signed_plan(plan_receive(1, piece(in)), OpKind::kRecv),
                                Priority::kNormal, nullptr, 0, milliseconds(100));
          }
          Buffers buffers(self.rank(), self.size(), 8 * kLarge);
          for (bool last = false; !last;) {
            if (lonely) last = lonely->completion.is_set() || limit.passed(now_ns());
            buffers.out[1 - self.rank()][0] = std::byte{last};
            const auto handle = self.start(buffers.plan(self.rank()), Priority::kNormal, busy);
            CHECK_OK(self.finish(*handle));
            if (!lonely) last = buffers.in[0][0] == std::byte{true};
          }
          if (self.rank() != 0) return;
          CHECK_GE(now_ns() - start, 100'000'000);
          CHECK(lonely->completion.is_set());
          CHECK_EQ(lonely->result.status.code(), StatusCode::kTimedOut);
        },
        mode);
  }
}

// wait() has a limit of its own; the operation goes on.
TEST(wait_limit_leaves_the_operation_alone) {
  for (const EngineOptions& mode : kModes) {
    std::atomic<bool> waited{false};
    run_ranks(
        2,
        [&waited](Rank& self) {
          Buffers buffers(self.rank(), self.size(), kLarge);
          if (self.rank() == 1) await([&] { return waited.load(); });
          const auto handle = self.start(buffers.plan(self.rank()));
          if (self.rank() == 0) {
            const Nanoseconds start = now_ns();
            CHECK(!self.engine().wait(handle->completion, Deadline::after(milliseconds(50))));
            CHECK_GE(now_ns() - start, 50'000'000);
            CHECK(!self.engine().wait(handle->completion, Deadline::at(0)));
            waited.store(true);
          }
          CHECK_OK(self.finish(*handle));
          CHECK(buffers.in[1 - self.rank()] == pattern_bytes(1 - self.rank(), 0, kLarge));
        },
        mode);
  }
}

// Nobody waits: the engine's own thread ends it.
TEST(deadline_holds_when_nobody_waits) {
  for (const EngineOptions& mode : kModes) {
    std::atomic<bool> seen{false};
    run_ranks(
        2,
        [&seen](Rank& self) {
          if (self.rank() == 1) return await([&] { return seen.load(); });
          Buffers buffers(0, 2, kLarge);
          const auto handle =
              self.start(buffers.plan(0), Priority::kNormal, nullptr, 0, milliseconds(100));
          await([&] { return handle->completion.is_set(); });
          CHECK_EQ(handle->result.status.code(), StatusCode::kTimedOut);
          seen.store(true);
        },
        mode);
  }
}

}  // namespace
}  // namespace freescale::testing
