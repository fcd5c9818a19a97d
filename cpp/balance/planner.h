#pragma once

// Gives each sample of a global batch to a rank so that the ranks' loads are alike. Pure functions
// of their arguments, in integers: all ranks come to the same plan without talking to each other.

#include <cstdint>
#include <span>
#include <vector>

#include "cpp/base/status.h"

namespace freescale {

// Sums of costs and of tokens must not exceed this, so that twice a difference of loads still fits.
inline constexpr int64_t kLargestTotal = int64_t{1} << 61;

enum class SampleCounts {
  kEqual,   // every rank gets as many samples; their number must be a multiple of the ranks'
  kUneven,  // every rank gets one or more
};

struct GlobalBatch {
  std::span<const int64_t> costs;  // of each sample, not negative
  int world_size;
  SampleCounts counts;
  // Of each sample, not negative; empty if tokens are not limited.
  std::span<const int64_t> tokens;
  int64_t most_tokens;  // that a rank may hold
};

struct BalancePlan {
  std::vector<int32_t> ranks;  // of each sample
  // What the heaviest rank has to bear in any assignment: the mean, or the dearest sample together
  // with as many of the cheapest as must come with it.
  int64_t floor;
};

// The heaviest rank's load exceeds the floor by at most 1/4096 where exchanges of samples between
// two ranks can reach that.
//
// Fails (kInvalidArgument) on a malformed batch, or if no assignment was found that keeps to
// `most_tokens`; the message says whether there is none.
Result<BalancePlan> plan_balance(const GlobalBatch& batch);

// Corrects an assignment, moving few samples, until no rank bears more than `target` or exchanges
// between two ranks help no more. With kEqual the numbers of samples stay as they are, which may be
// any; with kUneven no rank gives its last one away. `ranks` must satisfy `most_tokens`. Returns
// the new rank of each sample.
Result<std::vector<int32_t>> rebalance(const GlobalBatch& batch, std::span<const int32_t> ranks,
                                       int64_t target);

}  // namespace freescale
