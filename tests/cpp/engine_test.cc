// What the Engine adds to the protocol: threads, callbacks, its own end.

#include "cpp/scheduler/engine.h"

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

// An engine whose only group is a rank of its own: no links.
struct Solo {
  explicit Solo(EngineOptions options = {})
      : owned(std::make_unique<Engine>(options, doorbell)), engine(*owned) {
    engine.add_group(group);
  }
  // Never ends by itself: nobody else is there to send.
  void receive(std::function<void(const OpResult&)> on_done,
               Deadline deadline = Deadline::never()) {
    Request request;
    request.deadline = deadline;
    request.group = group;
    request.plan = signed_plan(plan_receive(kAnySource, piece(in)), OpKind::kRecv);
    request.on_done = std::move(on_done);
    engine.submit(std::move(request));
  }

  // A collective of the one rank.
  void copy(std::vector<std::byte>& from, std::vector<std::byte>& to,
            std::function<void(const OpResult&)> on_done) {
    Request request;
    request.group = group;
    request.sequence = group->next_sequence();
    request.plan = signed_plan(plan_all_to_all(0, {piece(from)}, {piece(to)}), OpKind::kAllToAll);
    request.on_done = std::move(on_done);
    engine.submit(std::move(request));
  }

  Doorbell doorbell;
  std::vector<std::byte> in = std::vector<std::byte>(100);
  std::shared_ptr<Group> group =
      std::make_shared<Group>(1, "solo", 0, std::vector<std::shared_ptr<Link>>{nullptr});
  std::unique_ptr<Engine> owned;
  Engine& engine;  // still there for on_done while `owned` lets go of it
};

TEST(engine_ends_what_is_open_when_it_is_destroyed) {
  std::atomic<int> ended{0};
  Solo solo;
  for (int i = 0; i < 10; ++i) {
    solo.receive([&](const OpResult& result) {
      CHECK_EQ(result.status.code(), StatusCode::kCancelled);
      ended.fetch_add(1);
    });
  }
  CHECK_EQ(ended.load(), 0);
  solo.owned.reset();
  CHECK_EQ(ended.load(), 10);
}

// The second half of an all_reduce, for instance.
TEST(engine_ends_what_on_done_starts_while_it_is_destroyed) {
  std::atomic<int> ended{0};
  Solo solo;
  solo.receive([&](const OpResult&) {
    ended.fetch_add(1);
    solo.receive([&](const OpResult& result) {
      CHECK_EQ(result.status.code(), StatusCode::kCancelled);
      ended.fetch_add(1);
    });
  });
  solo.owned.reset();
  CHECK_EQ(ended.load(), 2);
}

// Copies keep the engine moving without a pause; the timeout of another operation holds all the
// same.
TEST(engine_looks_at_deadlines_while_it_is_busy) {
  for (const EngineOptions& mode : kModes) {
    std::atomic<bool> timed_out{false};
    std::atomic<int> copies{0};
    std::vector<std::byte> from(4 << 20), to(4 << 20);
    const Deadline limit = Deadline::after(std::chrono::seconds(5));
    std::function<void(const OpResult&)> copy_again;
    Solo solo(mode);
    copy_again = [&](const OpResult&) {
      copies.fetch_add(1);
      if (timed_out.load() || limit.passed(now_ns())) return;
      solo.copy(from, to, copy_again);
    };
    for (int i = 0; i < 3; ++i) copy_again({});
    while (copies.load() <= 3 && !limit.passed(now_ns())) std::this_thread::yield();
    const int before = copies.load();
    Completion done;
    solo.receive(
        [&](const OpResult& result) {
          timed_out.store(result.status.code() == StatusCode::kTimedOut);
          done.set();
        },
        Deadline::after(milliseconds(50)));
    CHECK(solo.engine.wait(done, limit));
    CHECK(timed_out.load());
    CHECK_GT(before, 3);
  }
}

// In a group of one rank each ends inside its submit(). The chain must neither grow the stack
// (100,000 frames do not fit) nor keep the caller that does not wait.
TEST(engine_runs_chains_that_end_immediately) {
  for (const EngineOptions& mode : kModes) {
    std::vector<std::byte> from(64), to(64);
    std::atomic<int> left{100'000};
    Completion done;
    Solo solo(mode);
    std::function<void(const OpResult&)> next = [&](const OpResult& result) {
      CHECK_OK(result.status);
      if (left.fetch_sub(1) == 1) return done.set();
      solo.copy(from, to, next);
    };
    next({});
    CHECK(solo.engine.wait(done, Deadline::after(std::chrono::seconds(30))));
  }
}

TEST(engine_leaves_nothing_behind) {
  {
    Solo warm_up;
  }
  const Footprint before = Footprint::now();
  for (int i = 0; i < 20; ++i) Solo solo;
  expect_footprint(before);
}

TEST(engine_runs_chains_of_operations) {
  for (const EngineOptions& mode : kModes) {
    run_ranks(
        2,
        [](Rank& self) {
          Completion done;
          std::atomic<int> left{2000};
          std::function<void(const OpResult&)> next = [&](const OpResult& result) {
            CHECK_OK(result.status);
            if (left.fetch_sub(1) == 1) return done.set();
            Request request;
            request.group = self.group();
            request.plan = signed_plan(plan_barrier(self.rank(), self.size()), OpKind::kBarrier);
            request.sequence = self.group()->next_sequence();
            request.deadline = Deadline::after(std::chrono::seconds(10));
            request.on_done = next;
            self.engine().submit(std::move(request));
          };
          next({});
          CHECK(self.engine().wait(done, Deadline::after(std::chrono::seconds(15))));
        },
        mode);
  }
}

TEST(engine_moves_bytes_when_nobody_waits) {
  for (const EngineOptions& mode : kModes) {
    run_ranks(
        2,
        [](Rank& self) {
          std::vector<std::byte> out = pattern_bytes(self.rank(), 0, 3 << 20);
          std::vector<std::byte> in(out.size());
          std::vector<Pieces> input(2), output(2);
          input[1 - self.rank()] = piece(out);
          output[1 - self.rank()] = piece(in);
          for (int round = 0; round < 5; ++round) {
            const auto handle = self.start(
                signed_plan(plan_all_to_all(self.rank(), input, output), OpKind::kAllToAll));
            await([&] { return handle->completion.is_set(); });
            CHECK_OK(handle->result.status);
            CHECK(in == pattern_bytes(1 - self.rank(), 0, in.size()));
          }
        },
        mode);
  }
}

// Who asks what is open takes up what its caller has not come to yet. A rank that comes later is a
// straggler, even if the caller sees that only then.
TEST(engine_looks_at_what_it_takes_up_for_others) {
  std::promise<void> asked, came;
  run_ranks(2, [&](Rank& self) {
    Buffers buffers(self.rank(), 2, 100);
    if (self.rank() == 1) {
      asked.get_future().wait();
      const auto last = self.start(buffers.plan(1));
      self.engine().open_operations();  // so that it is posted, whoever had the lock
      came.set_value();
      return CHECK_OK(self.finish(*last));
    }
    const auto alone =
        std::make_shared<Group>(7, "alone", 0, std::vector<std::shared_ptr<Link>>{nullptr});
    self.engine().add_group(alone);
    Completion done;
    Request first;
    first.group = alone;
    first.sequence = alone->next_sequence();
    first.plan = signed_plan(plan_barrier(0, 1), OpKind::kBarrier);
    first.caller_waits = true;
    OpResult result;
    Nanoseconds before = 0;
    // On the thread that waits, so that nobody else is awake to look.
    first.on_done = [&](const OpResult&) {
      Request second;
      second.group = self.group();
      second.sequence = second.group->next_sequence();
      second.plan = buffers.plan(0);
      second.caller_waits = true;
      second.on_done = [&](const OpResult& other) {
        result = other;
        done.set();
      };
      self.engine().submit(std::move(second));
      CHECK_EQ(self.engine().open_operations().size(), 1u);
      before = now_ns();
      asked.set_value();
      came.get_future().wait();
    };
    self.engine().submit(std::move(first));
    CHECK(self.engine().wait(done, Deadline::after(std::chrono::seconds(30))));
    CHECK_OK(result.status);
    CHECK_GE(result.ready, before);
  });
}

// A rank that waits for a slow one sleeps; the bound is generous for a busy machine.
TEST(engine_waits_without_burning_a_core) {
  for (const EngineOptions& mode : kModes) {
    for (const size_t bytes : {size_t{0}, size_t{1} << 20}) {
      RankProcesses ranks(
          2,
          [bytes](Rank& self, SharedStore&) {
            std::vector<std::byte> out(bytes), in(bytes);
            std::vector<Pieces> input(2), output(2);
            input[1 - self.rank()] = piece(out);
            output[1 - self.rank()] = piece(in);
            CHECK_OK(self.barrier());
            const auto before = cpu_time();
            if (self.rank() == 1) std::this_thread::sleep_for(milliseconds(600));
            CHECK_OK(self.run(
                signed_plan(plan_all_to_all(self.rank(), input, output), OpKind::kAllToAll)));
            CHECK_LT((cpu_time() - before).count(), 200'000'000);
          },
          mode);
      ranks.expect_success();
    }
  }
}

// Several callers of one rank wait at the same time: they must not keep waking each other.
TEST(engine_with_many_callers_sleeps_too) {
  for (const EngineOptions& mode : kModes) {
    Solo solo(mode);
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; ++i) {
      callers.emplace_back([&] {
        for (int round = 0; round < 5; ++round) {
          Completion never;
          solo.receive([](const OpResult&) {});
          CHECK(!solo.engine.wait(never, Deadline::after(milliseconds(100))));
        }
      });
    }
    const auto before = cpu_time();
    for (std::thread& caller : callers) caller.join();
    CHECK_LT((cpu_time() - before).count(), 150'000'000);
  }
}

TEST(engine_with_open_work_and_no_caller_sleeps_too) {
  for (const EngineOptions& mode : kModes) {
    Solo solo(mode);
    solo.receive([](const OpResult&) {});
    const auto before = cpu_time();
    std::this_thread::sleep_for(milliseconds(500));
    CHECK_LT((cpu_time() - before).count(), 100'000'000);
  }
}

TEST(engine_counts_bytes_by_operation_and_priority) {
  run_ranks(2, [](Rank& self) {
    std::vector<std::byte> out(300'000), in(300'000), local(50), local_to(50);
    std::vector<Pieces> input(2), output(2);
    input[1 - self.rank()] = piece(out);
    output[1 - self.rank()] = piece(in);
    input[self.rank()] = piece(local);
    output[self.rank()] = piece(local_to);
    for (const Priority priority : {Priority::kUrgent, Priority::kUrgent, Priority::kLow}) {
      CHECK_OK(self.finish(*self.start(
          signed_plan(plan_all_to_all(self.rank(), input, output), OpKind::kAllToAll), priority)));
    }
    const std::vector<OpStatistics> cells = self.engine().statistics().snapshot();
    CHECK_EQ(cells.size(), 2u);
    for (const OpStatistics& cell : cells) {
      CHECK_EQ(cell.op, OpKind::kAllToAll);
      const uint64_t calls = cell.priority == Priority::kUrgent ? 2 : 1;
      CHECK_EQ(cell.bytes_sent, calls * 300'000);
      CHECK_EQ(cell.bytes_received, calls * 300'000);
    }
    const std::vector<LinkStatistics> links = self.engine().statistics().links();
    CHECK_EQ(links.size(), 1u);
    CHECK_EQ(links[0].peer, 1 - self.rank());
    CHECK_EQ(links[0].bytes_sent, 3u * 300'000);
    CHECK_EQ(links[0].bytes_received, 3u * 300'000);
    self.engine().statistics().reset();
    CHECK(self.engine().statistics().links().empty());
    CHECK(self.engine().statistics().snapshot().empty());
    CHECK_OK(self.barrier());
  });
}

}  // namespace
}  // namespace freescale::testing
