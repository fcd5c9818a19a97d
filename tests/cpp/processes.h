#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/cpp/ranks.h"

namespace freescale::testing {

// A store for ranks that are processes, forked after it was made: a table in shared memory. Also
// how ranks and the test tell each other how far they are. Needs no descriptors and no lock, so it
// works for processes that have none left, and when one is killed.
class SharedStore : public KeyValueStore {
 public:
  SharedStore();
  ~SharedStore() override;
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;

  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

  void announce(const std::string& event);
  void await(const std::string& event);

 private:
  static constexpr size_t kEntries = 512;
  struct Entry {
    std::atomic<bool> complete;
    char key[64];
    char value[2000];
  };
  struct Table {
    std::atomic<size_t> used;
    Entry entries[kEntries];
  };

  Table* table_;
};

// A forked child that runs `body` and ends. Killed, if it still runs, with this object and with the
// test's process. Fork before starting threads.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void()>& body);
  ChildProcess(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Fails the test unless the child's body came to its end.
  void expect_success();
  // Fails the test unless the child was killed by `number`.
  void expect_killed_by(int number);

 private:
  int wait_status();

  pid_t pid_ = -1;
};

// One process for each rank of a group.
class RankProcesses {
 public:
  using Body = std::function<void(Rank& self, SharedStore& events)>;
  RankProcesses(int size, const Body& body, EngineOptions options = {});

  SharedStore& events() { return store_; }
  ChildProcess& operator[](int rank) { return children_[rank]; }
  // All ranks but those in `lost` come to their end.
  void expect_success(const std::vector<int>& lost = {});

 private:
  SharedStore store_;
  std::vector<ChildProcess> children_;
};

// Descriptors and threads of this process: what must be the same after a test as before.
struct Footprint {
  size_t descriptors = 0;
  size_t threads = 0;
  static Footprint now();
  bool operator==(const Footprint&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Footprint& footprint);
// Waits until this process holds what it held before. The kernel lists a thread for a moment after
// it has been joined: now, or when `before` was taken.
void expect_footprint(const Footprint& before);

// User and system time of this process so far.
std::chrono::nanoseconds cpu_time();

}  // namespace freescale::testing
