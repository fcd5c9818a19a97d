#include "tests/cpp/check.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <vector>

namespace freescale::check {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr unsigned kSlowdown = 5;  // instrumented code
#else
constexpr unsigned kSlowdown = 1;
#endif

struct Test {
  const char* name;
  unsigned limit_seconds;
  void (*body)();
};

enum class Outcome { kPassed, kFailed, kSkipped };

struct Failed {};
struct Skipped {
  std::string reason;
};

std::vector<Test>& registered_tests() {
  static std::vector<Test> tests;
  return tests;
}

// Who runs the test body: only there may a failing check unwind.
pid_t runner_process;
std::thread::id runner_thread;

// Read by the signal handler, so plain pointers that are set before the alarm is.
const char* volatile running_name = "";

void on_alarm(int) {
  constexpr char kMessage[] = "[ FAIL ] over its time limit: ";
  // What write() returns is of no use to a process that ends on the next line.
  [[maybe_unused]] ssize_t written = write(STDOUT_FILENO, kMessage, sizeof(kMessage) - 1);
  written = write(STDOUT_FILENO, running_name, strlen(running_name));
  written = write(STDOUT_FILENO, "\n", 1);
  _exit(EXIT_FAILURE);
}

bool selected(const Test& test, const std::vector<std::string_view>& filters) {
  return filters.empty() || std::any_of(filters.begin(), filters.end(), [&](auto filter) {
           return std::string_view(test.name).find(filter) != std::string_view::npos;
         });
}

Outcome run_body(const Test& test) {
  try {
    test.body();
    return Outcome::kPassed;
  } catch (const Failed&) {
    return Outcome::kFailed;
  } catch (const Skipped& skipped) {
    std::printf("[ skip ] %s: %s\n", test.name, skipped.reason.c_str());
    return Outcome::kSkipped;
  } catch (const std::exception& error) {
    std::printf("  exception: %s\n", error.what());
    return Outcome::kFailed;
  }
}

Outcome run(const Test& test) {
  running_name = test.name;
  const auto start = std::chrono::steady_clock::now();
  alarm(test.limit_seconds * kSlowdown);
  const Outcome outcome = run_body(test);
  alarm(0);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;

  if (outcome != Outcome::kSkipped) {
    const char* label = outcome == Outcome::kPassed ? "[  ok  ]" : "[ FAIL ]";
    std::printf("%s %s (%.1f ms)\n", label, test.name, elapsed.count());
  }
  return outcome;
}

}  // namespace

Registration::Registration(const char* name, unsigned limit_seconds, void (*body)()) {
  registered_tests().push_back({name, limit_seconds, body});
}

void fail(const char* file, int line, std::string_view what) {
  std::printf("  %s:%d: %.*s\n", file, line, static_cast<int>(what.size()), what.data());
  if (getpid() != runner_process || std::this_thread::get_id() != runner_thread) {
    std::printf("[ FAIL ] %s, in a rank of its own\n", running_name);
    std::fflush(stdout);
    _exit(EXIT_FAILURE);
  }
  throw Failed{};
}

void skip(std::string_view reason) { throw Skipped{std::string(reason)}; }

int run_tests(int argc, char** argv) {
  // A child that a test forks must not print again what was buffered before.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  runner_process = getpid();
  runner_thread = std::this_thread::get_id();
  signal(SIGALRM, on_alarm);

  const std::vector<std::string_view> filters(argv + 1, argv + argc);
  int counts[3] = {};
  for (const Test& test : registered_tests()) {
    if (selected(test, filters)) ++counts[static_cast<int>(run(test))];
  }
  std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
  const bool none_ran = counts[0] + counts[1] + counts[2] == 0;
  if (none_ran) std::printf("no test has a name with one of the given substrings\n");
  return counts[1] > 0 || none_ran ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace freescale::check
