#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpp/collectives/collectives.h"
#include "cpp/scheduler/protocol.h"
#include "tests/cpp/fake_link.h"

namespace freescale::testing {

// Protocols of several ranks over fake links, all driven by the test's own thread, step by step:
// what happens is the same in every run.
class Stage {
 public:
  // How an operation ended, or that it has not.
  struct Outcome {
    bool done = false;
    OpResult result;
    const std::string& text() const { return result.status.message(); }
    StatusCode code() const { return result.status.code(); }
  };
  using Handle = std::shared_ptr<Outcome>;

  struct Call {
    OpKind op = OpKind::kAllToAll;
    Priority priority = Priority::kNormal;
    size_t group = 0;
    uint32_t tag = 0;
    std::string_view dtype = "uint8";
    uint64_t layout = 0;
    uint64_t sequence = 0;  // 0: the group's next
    uint32_t part = 0;
    Deadline deadline = Deadline::never();
    const std::shared_ptr<DeviceCall>* device = nullptr;  // of a plan in device memory
    const std::shared_ptr<const void>* memory = nullptr;  // what keeps that of its sends
  };

  explicit Stage(int size, std::chrono::nanoseconds aging = std::chrono::hours(1));

  // A further group of all ranks; returns its number.
  size_t add_group();

  Handle post(int rank, Plan plan, const Call& call);
  void reject(int rank, uint64_t sequence, OpKind op, const std::string& reason);
  void close_group(int rank, size_t group, const std::string& reason);
  // The rank's user lets go of a group that he has closed.
  void drop_group(int rank, size_t group) { ranks_[rank]->groups[group].reset(); }

  // One round of one rank: records, then at most one chunk each way, then devices. Whether anything
  // moved.
  bool step(int rank);
  // Records only, until none is left anywhere: everything is granted, no chunk moves.
  void exchange_records();
  // Until nothing moves any more.
  void run();

  FakeLink& link(int from, int to) { return *ranks_[from]->links[to]; }
  Protocol& protocol(int rank) { return ranks_[rank]->protocol; }
  Group& group(int rank, size_t number = 0) { return *ranks_[rank]->groups[number]; }

 private:
  struct OneRank {
    explicit OneRank(std::chrono::nanoseconds aging) : protocol(aging, statistics) {}
    Statistics statistics;
    std::vector<std::shared_ptr<FakeLink>> links;
    std::vector<std::shared_ptr<Group>> groups;
    Protocol protocol;
  };

  void report_finished(int rank);

  std::vector<std::unique_ptr<OneRank>> ranks_;
};

// A buffer of `bytes` bytes that differs by seed; alive as long as the test.
struct Buffer {
  explicit Buffer(size_t size, int seed = 0);
  Pieces pieces() { return {Segment{bytes.data(), bytes.size()}}; }
  std::vector<std::byte> bytes;
};

// An exchange between ranks 0 and 1, as rank `self` calls it.
Plan exchange(int self, Buffer& out, Buffer& in);
// A collective in which `root` sends to all others and nothing comes back, so that it may be over
// for the root before they call it. (The plan builders make none like it.)
Plan one_way(int self, int size, int root, Buffer& buffer);
// Fails the test unless a large exchange between ranks 0 and 1 of the group works.
void expect_works(Stage& stage, size_t group);

}  // namespace freescale::testing
