#include "tests/cpp/processes.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>
#include <utility>

#include "tests/cpp/check.h"

namespace freescale::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(15);

size_t entries_of(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace

SharedStore::SharedStore() {
  void* memory =
      mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  table_ = new (memory) Table();
}

SharedStore::~SharedStore() { munmap(table_, sizeof(Table)); }

Status SharedStore::set(const std::string& key, const std::string& value) {
  const size_t index = table_->used.fetch_add(1);
  if (index >= kEntries || key.size() >= sizeof(Entry::key) ||
      value.size() >= sizeof(Entry::value)) {
    return Status::system("no room in the test's store for " + key);
  }
  Entry& entry = table_->entries[index];
  key.copy(entry.key, key.size());
  value.copy(entry.value, value.size());
  entry.complete.store(true, std::memory_order_release);
  return {};
}

Result<std::string> SharedStore::get(const std::string& key, Deadline deadline) {
  while (true) {
    // The last value counts.
    for (size_t i = std::min(table_->used.load(), kEntries); i > 0; --i) {
      const Entry& entry = table_->entries[i - 1];
      if (entry.complete.load(std::memory_order_acquire) && key == entry.key) {
        return std::string(entry.value);
      }
    }
    if (deadline.passed(now_ns())) return Status::timed_out("no key " + key);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void SharedStore::announce(const std::string& event) { CHECK_OK(set(event, "")); }

void SharedStore::await(const std::string& event) {
  CHECK_OK(get(event, Deadline::after(kPatience)));
}

ChildProcess::ChildProcess(const std::function<void()>& body) {
  const pid_t parent = getpid();
  pid_ = fork();
  CHECK_GE(pid_, 0);
  if (pid_ != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);
  try {
    body();
  } catch (const std::exception& error) {
    check::fail(__FILE__, __LINE__, error.what());
  }
  _exit(EXIT_SUCCESS);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::signal(int number) const { CHECK_EQ(kill(pid_, number), 0); }

int ChildProcess::wait_status() {
  int status = -1;
  CHECK_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return status;
}

void ChildProcess::expect_success() { CHECK_EQ(wait_status(), 0); }

void ChildProcess::expect_killed_by(int number) {
  const int status = wait_status();
  CHECK(WIFSIGNALED(status));
  CHECK_EQ(WTERMSIG(status), number);
}

RankProcesses::RankProcesses(int size, const Body& body, EngineOptions options) {
  for (int rank = 0; rank < size; ++rank) {
    children_.emplace_back([&, rank] {
      Rank self(store_, rank, size, options);
      body(self, store_);
    });
  }
}

void RankProcesses::expect_success(const std::vector<int>& lost) {
  for (int rank = 0; rank < static_cast<int>(children_.size()); ++rank) {
    if (std::find(lost.begin(), lost.end(), rank) != lost.end()) continue;
    children_[rank].expect_success();
  }
}

Footprint Footprint::now() { return {entries_of("/proc/self/fd"), entries_of("/proc/self/task")}; }

std::ostream& operator<<(std::ostream& out, const Footprint& footprint) {
  return out << footprint.descriptors << " descriptors, " << footprint.threads << " threads";
}

void expect_footprint(const Footprint& before) {
  const auto is_back = [&](const Footprint& now) {
    return now.descriptors == before.descriptors && now.threads <= before.threads;
  };
  const Deadline limit = Deadline::after(kPatience);
  while (!is_back(Footprint::now()) && !limit.passed(now_ns())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Footprint now = Footprint::now();
  if (!is_back(now)) CHECK_EQ(now, before);
}

std::chrono::nanoseconds cpu_time() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

}  // namespace freescale::testing
