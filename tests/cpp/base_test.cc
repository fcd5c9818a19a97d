#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <cerrno>
#include <set>
#include <thread>

#include "cpp/base/clock.h"
#include "cpp/base/futex.h"
#include "cpp/base/priority.h"
#include "cpp/base/random.h"
#include "cpp/base/service_thread.h"
#include "cpp/base/status.h"
#include "cpp/base/text.h"
#include "cpp/base/unique_fd.h"
#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"

namespace freescale::testing {
namespace {

TEST(deadline_never_passes) {
  CHECK(Deadline::never().is_never());
  CHECK(!Deadline::never().passed(now_ns()));
  CHECK(Deadline::at(5) < Deadline::never());
  // Spans that would overflow mean never, too.
  CHECK(Deadline::after(std::chrono::nanoseconds::max()).is_never());
}

TEST(deadline_passes_at_its_time) {
  const Deadline deadline = Deadline::at(1000);
  CHECK(!deadline.passed(999));
  CHECK(deadline.passed(1000));
  CHECK_EQ(deadline.left().count(), 0);
  const Deadline later = Deadline::after(std::chrono::seconds(100));
  CHECK_GT(later.left(), std::chrono::seconds(99));
  CHECK_LE(later.left(), std::chrono::seconds(100));
  CHECK(Deadline::after(std::chrono::seconds(-1)).passed(now_ns()));
}

TEST(priority_levels_and_names) {
  const char* names[] = {"URGENT", "HIGH", "NORMAL", "LOW", "BACKGROUND"};
  for (int level = 0; level < kPriorityLevels; ++level) {
    const Priority priority = priority_of_level(level);
    CHECK_EQ(priority_level(priority), level);
    CHECK_EQ(priority_name(priority), std::string_view(names[level]));
    CHECK(is_priority(static_cast<int>(priority)));
  }
  CHECK(!is_priority(-3));
  CHECK(!is_priority(3));
}

TEST(status_says_what_failed) {
  CHECK(Status().ok());
  const Status status = Status::from_errno("opening the box", ENOENT);
  CHECK(!status.ok());
  CHECK_EQ(status.code(), StatusCode::kSystem);
  CHECK_EQ(status.message(), std::string("opening the box: No such file or directory"));
}

TEST(result_holds_a_value_or_the_reason) {
  const Result<int> good = 5;
  CHECK(good.ok());
  CHECK_EQ(good.value(), 5);
  CHECK(good.status().ok());
  const Result<int> bad = Status::timed_out("too late");
  CHECK(!bad.ok());
  CHECK_EQ(bad.status().code(), StatusCode::kTimedOut);
}

TEST(unique_fd_closes_once) {
  const Footprint before = Footprint::now();
  UniqueFd first(dup(0));
  UniqueFd second = std::move(first);
  CHECK(!first.valid());
  CHECK(second.valid());
  second = UniqueFd(dup(0));
  CHECK_EQ(Footprint::now().descriptors, before.descriptors + 1);
  second.reset();
  CHECK_EQ(Footprint::now(), before);
}

TEST(random_numbers_do_not_repeat) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) CHECK(seen.insert(random_u64()).second);
}

TEST(futex_wakes_by_mask) {
  std::atomic<uint32_t> word{0};
  std::atomic<bool> woken{false};
  std::thread sleeper([&] {
    while (word.load() == 0) futex_wait(word, 0, -1, 2);
    woken.store(true);
  });
  futex_wake_all(word, 1);
  CHECK(!woken.load());
  word.store(1);
  futex_wake_all(word, 2);
  sleeper.join();
  CHECK(woken.load());
}

TEST(futex_returns_at_its_limit_and_when_the_word_differs) {
  std::atomic<uint32_t> word{7};
  futex_wait(word, 6, -1);
  const Nanoseconds start = now_ns();
  futex_wait(word, 7, 10'000'000);
  CHECK_GE(now_ns() - start, 10'000'000);
}

TEST(service_threads_leave_signals_and_the_core_to_the_program) {
  int policy = -1;
  sigset_t blocked;
  sigemptyset(&blocked);
  std::thread thread = start_service_thread("of-the-library", [&] {
    policy = sched_getscheduler(0);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  });
  thread.join();
  CHECK_EQ(policy, SCHED_BATCH);
  CHECK_EQ(sigismember(&blocked, SIGINT), 1);
  CHECK_EQ(sched_getscheduler(0), SCHED_OTHER);
  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  CHECK_EQ(sigismember(&blocked, SIGINT), 0);
}

TEST(readable_keeps_texts) {
  const std::string text = "rank 1:\nDelta \xce\x94, \xe2\x82\xac, \xed\x9f\xbf, \xf0\x9f\x98\x80";
  CHECK_EQ(readable(text), text);
  CHECK_EQ(readable(""), "");
}

TEST(readable_replaces_what_is_no_text) {
  const struct {
    std::string_view foreign;
    std::string_view shown;
  } cases[] = {
      {"a\x80z", "a?z"},                // continues nothing
      {"a\xce", "a?"},                  // cut within a character
      {"\xe2\x82z", "??z"},             //
      {"\xc0\xaf", "??"},               // longer than needed
      {"\xe0\x80\xaf", "???"},          //
      {"\xed\xa0\x80", "???"},          // a surrogate
      {"\xf4\x90\x80\x80", "????"},     // beyond U+10FFFF
      {"\xff\xfe", "??"},               //
      {{"a\0\x1b[2Jb", 7}, "a??[2Jb"},  // what a terminal would obey
  };
  for (const auto& one : cases) CHECK_EQ(readable(one.foreign), one.shown);
}

}  // namespace
}  // namespace freescale::testing
