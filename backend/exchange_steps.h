#pragma once

#include <cstdint>

#include "cpp/scheduler/plan.h"

namespace freescale {

// A piece of a collective that goes through its exchanges on its own.
struct Block {
  int64_t index = 0;
  int slot = 0;  // 0 ... kBlocksInFlight - 1
};

// Blocks of one collective that are under way at a time: while one is worked on, others travel.
inline constexpr int kBlocksInFlight = 4;

// A collective of several exchanges: it is cut into blocks, each of which takes one or more
// exchanges (stages) with local work after each. Computes addresses and does the local work; the
// pipeline that drives it does the rest. Calls for different slots may come at the same time from
// different threads. All ranks cut alike.
class ExchangeSteps {
 public:
  virtual ~ExchangeSteps() = default;
  // At least one, so that ranks meet (and notice if they disagree) even over empty tensors.
  virtual int64_t blocks() const = 0;
  virtual int stages() const = 0;
  // Adds the messages of one exchange to `plan`.
  virtual void plan_stage(const Block& block, int stage, Plan& plan) = 0;
  // The local work once that exchange is done. Throws what ATen throws.
  virtual void finish_stage(const Block& block, int stage) = 0;
};

}  // namespace freescale
