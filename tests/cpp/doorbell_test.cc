#include "cpp/transport/shm/doorbell.h"

#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "cpp/base/clock.h"
#include "cpp/base/cpu_relax.h"
#include "tests/cpp/check.h"

namespace freescale {
namespace {

// Waits until `word` is `value`, as the engine does: poll, announce, look once more, sleep without
// a limit. A lost wake-up hangs and is killed by the test's limit. How long it polls varies, so
// that the ring falls before, into and after the way to sleep.
void await(Doorbell& doorbell, uint32_t who, bool wants_events, std::atomic<int>& word, int value) {
  for (int i = 0; i < value % 97 * 4 && word.load(std::memory_order_relaxed) != value; ++i) {
    cpu_relax();
  }
  while (word.load(std::memory_order_relaxed) != value) {
    const uint32_t ticket = doorbell.prepare(who, wants_events);
    if (word.load(std::memory_order_relaxed) != value) doorbell.sleep(ticket, who, -1);
    if (wants_events) doorbell.finish(who);
  }
}

void ping_pong(uint32_t who, int rounds) {
  Doorbell left;
  Doorbell right;
  std::atomic<int> ping{0};
  std::atomic<int> pong{0};
  std::thread other([&] {
    for (int i = 1; i <= rounds; ++i) {
      await(right, who, true, ping, i);
      pong.store(i, std::memory_order_relaxed);
      left.ring();
    }
  });
  for (int i = 1; i <= rounds; ++i) {
    ping.store(i, std::memory_order_relaxed);
    right.ring();
    await(left, who, true, pong, i);
  }
  other.join();
}

TEST_WITHIN(doorbell_loses_no_wake_up_of_callers, 60) { ping_pong(Doorbell::kCaller, 100'000); }
TEST_WITHIN(doorbell_loses_no_wake_up_of_engines, 60) { ping_pong(Doorbell::kEngine, 20'000); }

TEST_WITHIN(doorbell_ring_always_reaches_who_was_not_announced, 60) {
  constexpr int rounds = 20'000;
  Doorbell left;
  Doorbell right;
  std::atomic<int> ping{0};
  std::atomic<int> pong{0};
  std::thread other([&] {
    for (int i = 1; i <= rounds; ++i) {
      await(right, Doorbell::kEngine, false, ping, i);
      pong.store(i, std::memory_order_relaxed);
      left.ring_always(Doorbell::kEngine);
    }
  });
  for (int i = 1; i <= rounds; ++i) {
    ping.store(i, std::memory_order_relaxed);
    right.ring_always(Doorbell::kEngine);
    await(left, Doorbell::kEngine, false, pong, i);
  }
  other.join();
}

TEST(doorbell_rung_after_the_ticket_does_not_sleep) {
  Doorbell doorbell;
  const uint32_t ticket = doorbell.prepare(Doorbell::kCaller, true);
  doorbell.ring();
  doorbell.sleep(ticket, Doorbell::kCaller, -1);
  doorbell.finish(Doorbell::kCaller);
}

TEST(doorbell_sleep_ends_at_its_limit) {
  Doorbell doorbell;
  const Nanoseconds start = now_ns();
  const uint32_t ticket = doorbell.prepare(Doorbell::kCaller, true);
  doorbell.sleep(ticket, Doorbell::kCaller, 20'000'000);
  CHECK_GE(now_ns() - start, 20'000'000);
}

TEST(doorbell_does_not_count_a_ring_that_nobody_waits_for) {
  Doorbell doorbell;
  const uint32_t before = doorbell.prepare(Doorbell::kEngine, false);
  doorbell.ring();
  CHECK_EQ(doorbell.prepare(Doorbell::kEngine, false), before);
  doorbell.prepare(Doorbell::kCaller, true);
  CHECK(doorbell.caller_waits());
  doorbell.ring();
  CHECK_NE(doorbell.prepare(Doorbell::kEngine, false), before);
  doorbell.finish(Doorbell::kCaller);
  CHECK(!doorbell.caller_waits());
}

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && stat[name_end + 2] == 'S';
}

// A ring wakes the caller and leaves the engine thread asleep: the caller moves the bytes itself.
TEST(doorbell_prefers_the_caller) {
  Doorbell doorbell;
  std::atomic<pid_t> thread{0};
  const uint32_t engine_ticket = doorbell.prepare(Doorbell::kEngine, true);
  std::thread engine([&] {
    thread.store(gettid());
    doorbell.sleep(engine_ticket, Doorbell::kEngine, -1);
  });
  // Once it has fallen asleep: its ticket would otherwise be stale after the ring.
  while (thread.load() == 0 || !sleeps(thread.load())) std::this_thread::yield();
  const uint32_t ticket = doorbell.prepare(Doorbell::kCaller, true);
  doorbell.ring();
  doorbell.sleep(ticket, Doorbell::kCaller, -1);
  const bool engine_sleeps = sleeps(thread.load());
  doorbell.ring_always(Doorbell::kEngine);
  engine.join();
  CHECK(engine_sleeps);
}

}  // namespace
}  // namespace freescale
