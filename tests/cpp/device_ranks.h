#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cpp/transport/cuda_ipc/cuda_device.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::testing {

// A rank with a device of the stand-in driver, whose context is current.
struct DeviceRank {
  StandIn& stand_in;
  cuda::CudaDevice& device;
  Rank& rank;
  SharedStore& events;
  cuda::Stream stream;  // of its user

  // An operation in flight on device memory.
  struct Handle {
    std::shared_ptr<cuda::CudaCall> call;
    Completion submitted;  // or over
    Completion done;
    OpResult result;
  };
  // How it is called, where that matters.
  struct Call {
    Priority priority = Priority::kNormal;
    std::shared_ptr<Group> group = nullptr;
    std::chrono::milliseconds timeout = std::chrono::seconds(15);
    std::shared_ptr<const void> keep = nullptr;
  };
  // Starts it where `stream` is now.
  std::shared_ptr<Handle> start(Plan plan, cuda::Stream stream) {
    return start(std::move(plan), stream, Call());
  }
  std::shared_ptr<Handle> start(Plan plan, cuda::Stream stream, Call call);
  std::shared_ptr<Handle> start(Plan plan, cuda::Stream stream, Priority priority) {
    return start(std::move(plan), stream, {.priority = priority});
  }
  // In two steps: begins the call, and hands it to the engine.
  Result<std::shared_ptr<cuda::CudaCall>> begin(const Plan& plan, cuda::Stream stream,
                                                const Call& call);
  std::shared_ptr<Handle> submit(std::shared_ptr<cuda::CudaCall> begun, Plan plan,
                                 const Call& call);
  // What a user's wait() does: from here on `stream` waits for the operation. An error if it has
  // failed by now.
  Status order(Handle& handle, cuda::Stream stream);
  // Until the host knows that it is over.
  Status finish(Handle& handle);
};

struct DeviceSetup {
  int size = 2;
  Environment environment = {};
  cuda::CudaDeviceOptions options = {};
  EngineOptions engine = {};
  // On which device a rank is.
  std::function<int(int)> device_of = [](int) { return 0; };
  // Whether messages have gone between all before the body begins.
  bool proves_access = true;
};

// How messages go: how their copies are submitted, and whether devices have access to each other.
struct DeviceWay {
  cuda::SubmissionMode mode = cuda::SubmissionMode::kAhead;
  bool direct = true;
};
inline constexpr DeviceWay kDeviceWays[] = {{cuda::SubmissionMode::kAhead, true},
                                            {cuda::SubmissionMode::kProxy, true},
                                            {cuda::SubmissionMode::kAhead, false},
                                            {cuda::SubmissionMode::kProxy, false}};
// Ranks on one device, or without access on one each.
DeviceSetup setup_for(const DeviceWay& way, int size = 2);

// Until the stream's work is over.
void synchronize(DeviceRank& self, cuda::Stream stream);
// Waits for the engine's word, and drops the call as a user does who has seen the error.
Status end(DeviceRank& self, DeviceRank::Handle& handle);

// One process for each rank of a group; all come to their end.
using DeviceBody = std::function<void(DeviceRank&)>;
void run_device_ranks(const DeviceSetup& setup, const DeviceBody& body);

// The same, for tests that look after the processes themselves.
class DeviceRankProcesses {
 public:
  DeviceRankProcesses(const DeviceSetup& setup, const DeviceBody& body);
  SharedStore& events() { return store_; }
  ChildProcess& operator[](int rank) { return children_[rank]; }
  void expect_success(const std::vector<int>& lost = {});

 private:
  SharedStore store_;
  std::vector<ChildProcess> children_;
};

// One rank's side of an all-to-all of ragged messages in device memory, again and again: one
// allocation for all it sends and one for all it receives.
class DeviceExchange {
 public:
  // Bytes from one rank to another; the same on all ranks.
  using Sizes = std::function<size_t(int from, int to)>;
  DeviceExchange(DeviceRank& self, const Sizes& sizes)
      : DeviceExchange(self, sizes, self.rank.size()) {}
  // Among the first `ranks` ranks.
  DeviceExchange(DeviceRank& self, const Sizes& sizes, int ranks);
  // In memory that `allocate` gives, which lives as long as the process.
  using Allocate = std::function<cuda::DevicePtr(size_t bytes)>;
  DeviceExchange(DeviceRank& self, const Sizes& sizes, const Allocate& allocate)
      : DeviceExchange(self, sizes, self.rank.size(), allocate) {}

  Plan plan() const;

  // Enqueued: puts in place what to send in `round`, and something else where it is to land.
  void fill(int round, cuda::Stream stream);
  // Enqueued: takes to the host what has landed; check() once the stream is there.
  void fetch(cuda::Stream stream) const;
  bool holds(int round) const;
  // What was fetched is what fill() had put there.
  bool untouched() const;
  void check(int round) const;

 private:
  // Device memory, and as much pinned memory of the host; from exchanges that are over, if any.
  struct Memory {
    cuda::DevicePtr device = 0;
    cuda::DevicePtr pinned = 0;
    char* host = nullptr;
  };
  struct Buffer : Memory {
    Buffer(const StandIn& stand_in, size_t bytes, const Allocate& allocate);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    const size_t bytes;
    const bool pooled;
  };
  // From the pool without `allocate`.
  DeviceExchange(DeviceRank& self, const Sizes& sizes, int ranks, const Allocate& allocate);
  // What is free, by size.
  static std::map<size_t, std::vector<Memory>>& pool();
  std::string expected(int round) const;

  DeviceRank& self_;
  const std::vector<size_t> out_bytes_;  // by peer, of those that take part
  const std::vector<size_t> in_bytes_;
  Buffer out_;
  Buffer in_;
  Buffer garbage_;
};

// From here on no copy within the rank's device, and no kernel, gets a multiprocessor, until the
// word is not zero any more.
void fill_multiprocessors(const DeviceRank& self, StandIn::Word until);

// Messages of some chunks, other ones between any two ranks.
size_t some_chunks(int from, int to);
// An exchange of those among all ranks of the group, from fill() to check().
void expect_works(DeviceRank& self, std::shared_ptr<Group> group = nullptr);

}  // namespace freescale::testing
