#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/scheduler/path.h"
#include "cpp/scheduler/request.h"

namespace freescale {

// A group as records name it; outlives the group.
struct FlightGroup {
  uint64_t id = 0;  // the same on all members
  std::string name;
  int rank = 0;
  int size = 0;
  std::vector<uint64_t> global_ranks;  // of the members; empty: the same as in the group

  int rank_in_job() const {
    return global_ranks.empty() ? rank : static_cast<int>(global_ranks[rank]);
  }
};

// One call: what was asked, and how far it got.
struct FlightRecord {
  enum class State { kInFlight, kCompleted, kFailed };

  uint64_t number = 0;  // of the call in this process, from 1
  std::shared_ptr<const FlightGroup> group;
  OpKind op = OpKind::kNone;
  uint64_t sequence = 0;  // collectives
  int peer = kAnySource;  // point-to-point
  uint32_t tag = 0;       // point-to-point
  DtypeName dtype{};
  uint64_t bytes_in = 0;   // of the tensors given
  uint64_t bytes_out = 0;  // of the tensors to be filled
  Priority priority = Priority::kNormal;
  State state = State::kInFlight;
  PathSet paths;
  Nanoseconds begin = 0;  // CLOCK_MONOTONIC: comparable on one host
  Nanoseconds end = 0;
  std::string failure;
};

// The last calls of this process, for finding out afterwards who did not do what. Thread-safe.
class FlightRecorder {
 public:
  // Remembers `capacity` calls; with 0 nothing, at no cost.
  explicit FlightRecorder(size_t capacity) : records_(capacity) {}

  // Returns the call's number, for end().
  uint64_t begin(FlightRecord record);
  // Nothing happens if the call was overwritten by later ones.
  void end(uint64_t number, const OpResult& result);
  // By number.
  std::vector<FlightRecord> records() const;

 private:
  FlightRecord& slot(uint64_t number) { return records_[number % records_.size()]; }

  mutable std::mutex mutex_;  // guards the rest
  std::vector<FlightRecord> records_;
  uint64_t last_ = 0;
};

}  // namespace freescale
