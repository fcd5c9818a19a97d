// Ranks that are processes, and what the others see when one of them is killed, stopped or starved.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

constexpr int kSize = 3;
constexpr int kVictim = 2;
// However busy the machine; who only learns by its timeout takes 15 s.
constexpr Nanoseconds kSoon = 10'000'000'000;

// ---- Death -------------------------------------------------------------------------------------

void expect_death(const Status& status, pid_t victim) {
  CHECK(!status.ok());
  const std::string& text = status.message();
  if (status.code() == StatusCode::kPeerLost) {
    expect_text(text, {"rank 2 is lost: process " + std::to_string(victim) + " ", " has died"});
  } else {  // the other survivor was quicker and gave it up
    CHECK_EQ(status.code(), StatusCode::kCancelled);
    expect_text(text, {"process " + std::to_string(victim) + " ", " has died"});
  }
}

// The survivors still exchange with each other.
void expect_survivors_talk(Rank& self) {
  const int peer = 1 - self.rank();
  std::vector<std::byte> out = pattern_bytes(self.rank(), 9, 300'000);
  std::vector<std::byte> in(out.size());
  const auto receive = self.start(signed_plan(plan_receive(peer, piece(in)), OpKind::kRecv));
  const auto send = self.start(signed_plan(plan_send(peer, piece(out)), OpKind::kSend));
  CHECK_OK(self.finish(*receive));
  CHECK_OK(self.finish(*send));
  CHECK(in == pattern_bytes(peer, 9, in.size()));
}

// Exchanges until rank 2 is killed in the middle of it.
void expect_death_seen(size_t bytes, size_t in_flight) {
  for (const EngineOptions& mode : kModes) {
    RankProcesses ranks(
        kSize,
        [=](Rank& self, SharedStore& events) {
          std::vector<Buffers> buffers(in_flight, Buffers(self.rank(), self.size(), bytes));
          if (self.rank() == kVictim) CHECK_OK(events.set("victim", std::to_string(getpid())));
          Status status;
          for (int round = 0; status.ok(); ++round) {
            if (round == 5 && self.rank() == 0) events.announce("in full swing");
            std::vector<std::shared_ptr<Rank::Handle>> handles;
            for (Buffers& one : buffers) handles.push_back(self.start(one.plan(self.rank())));
            for (const auto& handle : handles) {
              const Status one = self.finish(*handle);
              if (status.ok()) status = one;
            }
          }
          const Result<std::string> victim = events.get("victim", Deadline::at(0));
          CHECK_OK(victim);
          expect_death(status, std::stoi(victim.value()));
          // Whatever comes next fails at once, in a few rounds: each rank reports late failures
          // once.
          const Nanoseconds start = now_ns();
          for (int i = 0; i < 3; ++i) CHECK(!self.run(buffers[0].plan(self.rank())).ok());
          CHECK_LT(now_ns() - start, kSoon);
          expect_survivors_talk(self);
        },
        mode);
    ranks.events().await("in full swing");
    std::this_thread::sleep_for(milliseconds(20));
    ranks[kVictim].signal(SIGKILL);
    ranks.expect_success({kVictim});
    ranks[kVictim].expect_killed_by(SIGKILL);
  }
}

TEST_WITHIN(death_during_small_operations, 60) { expect_death_seen(64, 1); }
TEST_WITHIN(death_during_large_operations, 60) { expect_death_seen(4 << 20, 1); }
TEST_WITHIN(death_with_many_operations_in_flight, 60) { expect_death_seen(300'000, 8); }

TEST(death_wakes_who_sleeps) {
  for (const EngineOptions& mode : kModes) {
    RankProcesses ranks(
        kSize,
        [](Rank& self, SharedStore& events) {
          CHECK_OK(self.barrier());
          if (self.rank() == kVictim) {
            CHECK_OK(events.set("victim", std::to_string(getpid())));
            pause();
          }
          const Nanoseconds start = now_ns();
          const Status status = self.barrier();
          CHECK_LT(now_ns() - start, kSoon);
          expect_death(status, std::stoi(events.get("victim", Deadline::at(0)).value()));
        },
        mode);
    ranks.events().await("victim");
    std::this_thread::sleep_for(milliseconds(200));
    ranks[kVictim].signal(SIGKILL);
    ranks.expect_success({kVictim});
  }
}

// A rank that ends without a word, between operations.
TEST(exit_without_closing_is_a_death) {
  RankProcesses ranks(2, [](Rank& self, SharedStore& events) {
    CHECK_OK(self.barrier());
    if (self.rank() == 1) _exit(0);
    const Status status = self.barrier();
    CHECK_EQ(status.code(), StatusCode::kPeerLost);
    expect_text(status.message(), "has died");
    events.announce("seen");
  });
  ranks.expect_success();
  ranks.events().await("seen");
}

// The faster ranks end as soon as they are done; the slower ones get all that was sent to them.
TEST_WITHIN(leaving_early_hurts_nobody, 60) {
  for (int round = 0; round < 10; ++round) {
    RankProcesses ranks(kSize, [round](Rank& self, SharedStore&) {
      Buffers buffers(self.rank(), self.size(), round % 2 == 0 ? 5000 : 700'000);
      CHECK_OK(self.barrier());
      if (self.rank() == round % kSize) std::this_thread::sleep_for(milliseconds(5));
      CHECK_OK(self.run(buffers.plan(self.rank())));
      for (int peer = 0; peer < kSize; ++peer) {
        CHECK(buffers.in[peer] == pattern_bytes(peer, 0, buffers.in[peer].size()));
      }
    });
    ranks.expect_success();
  }
}

// ---- Stopped -----------------------------------------------------------------------------------

TEST_WITHIN(stopped_rank_continues, 60) {
  for (const EngineOptions& mode : kModes) {
    RankProcesses ranks(
        kSize,
        [](Rank& self, SharedStore& events) {
          for (int round = 0; round < 40; ++round) {
            if (round == 5 && self.rank() == 0) events.announce("in full swing");
            Buffers buffers(self.rank(), self.size(), round % 2 == 0 ? 64 : 400'000);
            CHECK_OK(self.run(buffers.plan(self.rank())));
            // One way, so that nothing comes back to wake the sender.
            std::vector<std::byte> buffer = pattern_bytes(0, round, 400'000);
            CHECK_OK(self.run(signed_plan(
                plan_broadcast(self.rank(), self.size(), 0, piece(buffer)), OpKind::kBroadcast)));
          }
          CHECK_OK(self.barrier());
        },
        mode);
    ranks.events().await("in full swing");
    for (int i = 0; i < 4; ++i) {
      const ChildProcess& stopped = ranks[i % kSize];
      stopped.signal(SIGSTOP);
      std::this_thread::sleep_for(milliseconds(50));
      stopped.signal(SIGCONT);
    }
    ranks.expect_success();
  }
}

TEST(stopped_rank_is_named_by_the_timeout_and_catches_up) {
  RankProcesses ranks(2, [](Rank& self, SharedStore& events) {
    CHECK_OK(self.barrier());
    Buffers buffers(self.rank(), self.size(), 2 << 20);
    if (self.rank() == 1) {
      events.announce("may be stopped");
      events.await("timed out");
    }
    const auto handle = self.start(buffers.plan(self.rank()), Priority::kNormal, nullptr, 0,
                                   milliseconds(self.rank() == 0 ? 200 : 10'000));
    const Status status = self.finish(*handle);
    CHECK_EQ(status.code(), self.rank() == 0 ? StatusCode::kTimedOut : StatusCode::kCancelled);
    expect_text(status.message(), " Timed out after 200 ms waiting for rank 1");
    if (self.rank() == 0) events.announce("timed out");
    CHECK_OK(self.run(buffers.plan(self.rank())));
    CHECK_OK(self.barrier());
  });
  ranks.events().await("may be stopped");
  ranks[1].signal(SIGSTOP);
  ranks.events().await("timed out");
  ranks[1].signal(SIGCONT);
  ranks.expect_success();
}

// ---- Starved of memory -------------------------------------------------------------------------

// How much address space this process uses, in bytes.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

void allow_address_space(rlim_t more) {
  rlimit limit{};
  CHECK_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  limit.rlim_cur = address_space() + more;
  CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SKIP_UNDER_SANITIZERS() SKIP("a sanitizer's own memory does not fit the limit")
#else
#define SKIP_UNDER_SANITIZERS() static_cast<void>(0)
#endif

TEST(mesh_without_memory_is_an_error) {
  SKIP_UNDER_SANITIZERS();
  ChildProcess poor([] {
    allow_address_space(256 << 10);
    const Result<std::unique_ptr<Mesh>> mesh = Mesh::create();
    CHECK_EQ(mesh.status().code(), StatusCode::kSystem);
  });
  poor.expect_success();
}

TEST(link_without_memory_is_an_error_on_both_sides) {
  SKIP_UNDER_SANITIZERS();
  SharedStore store;
  ChildProcess poor([&] {
    Result<std::unique_ptr<Mesh>> mesh = Mesh::create();
    CHECK_OK(mesh);
    allow_address_space(512 << 10);
    const Result<Membership> joined =
        mesh.value()->join(store, 0, 2, Deadline::after(std::chrono::seconds(10)));
    CHECK(!joined.ok());
    expect_text(joined.status().message(), "rank 0 could not connect to rank 1");
    store.announce("refused");
    store.await("refused there");
  });
  Result<std::unique_ptr<Mesh>> mesh = Mesh::create();
  CHECK_OK(mesh);
  const Result<Membership> joined =
      mesh.value()->join(store, 1, 2, Deadline::after(std::chrono::seconds(10)));
  CHECK(!joined.ok());
  expect_text(joined.status().message(), "rank 1 could not connect to rank 0");
  store.announce("refused there");
  store.await("refused");
  poor.expect_success();
}

}  // namespace
}  // namespace freescale::testing
