#include "cpp/balance/planner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "cpp/balance/cost_order.h"
#include "cpp/balance/greedy.h"
#include "cpp/balance/peak_reducer.h"

namespace freescale {
namespace {

// The plan is good enough when the heaviest rank is within this part of the floor: a step's time
// varies by more than that from run to run.
constexpr int64_t kToleranceDivisor = 4096;

Status check_amounts(const char* what, std::span<const int64_t> amounts) {
  int64_t total = 0;
  for (size_t i = 0; i < amounts.size(); ++i) {
    if (amounts[i] < 0) {
      return Status::invalid_argument(std::string(what) + " " + std::to_string(amounts[i]) +
                                      " of sample " + std::to_string(i) + " is negative");
    }
    if (amounts[i] > kLargestTotal - total) {
      return Status::invalid_argument(std::string("the sum of all ") + what + "s is beyond 2^61");
    }
    total += amounts[i];
  }
  return {};
}

std::string sizes_of(const GlobalBatch& batch) {
  return std::to_string(batch.costs.size()) + " samples on " + std::to_string(batch.world_size) +
         " ranks";
}

// Whether the samples can be dealt out at all.
Status check_shares(const GlobalBatch& batch) {
  const size_t samples = batch.costs.size();
  if (batch.world_size < 1 || samples < static_cast<size_t>(batch.world_size)) {
    return Status::invalid_argument(sizes_of(batch) + ": every rank needs a sample");
  }
  if (batch.counts == SampleCounts::kEqual && samples % batch.world_size != 0) {
    return Status::invalid_argument(sizes_of(batch) + " cannot be equally many on each");
  }
  return {};
}

Status check(const GlobalBatch& batch) {
  const size_t samples = batch.costs.size();
  if (batch.world_size < 1) {
    return Status::invalid_argument(sizes_of(batch) + ": there must be one or more");
  }
  if (samples > std::numeric_limits<int32_t>::max()) {
    return Status::invalid_argument(sizes_of(batch) + ": too many for one batch");
  }
  if (Status status = check_amounts("cost", batch.costs); !status.ok()) return status;
  if (batch.tokens.empty()) return {};
  if (batch.tokens.size() != samples) {
    return Status::invalid_argument(sizes_of(batch) + ", but tokens of " +
                                    std::to_string(batch.tokens.size()));
  }
  return check_amounts("token count", batch.tokens);
}

int64_t sum(std::span<const int64_t> amounts) {
  return std::accumulate(amounts.begin(), amounts.end(), int64_t{0});
}

int64_t samples_per_rank(const GlobalBatch& batch) {
  return static_cast<int64_t>(batch.costs.size()) / batch.world_size;
}

// `order` is ascending_order(amounts).
int64_t floor_of(const GlobalBatch& batch, std::span<const int64_t> amounts,
                 std::span<const int32_t> order) {
  const int64_t mean = (sum(amounts) + batch.world_size - 1) / batch.world_size;
  int64_t with_largest = amounts[order.back()];
  if (batch.counts == SampleCounts::kEqual) {
    const int64_t companions = samples_per_rank(batch) - 1;
    for (int64_t i = 0; i < companions; ++i) with_largest += amounts[order[i]];
  }
  return std::max(mean, with_largest);
}

PeakReducer::Counts reducer_counts(const GlobalBatch& batch) {
  return batch.counts == SampleCounts::kEqual ? PeakReducer::Counts::kKept
                                              : PeakReducer::Counts::kFree;
}

std::optional<PeakReducer::Limit> token_limit(const GlobalBatch& batch) {
  if (batch.tokens.empty()) return std::nullopt;
  return PeakReducer::Limit{batch.tokens, batch.most_tokens};
}

// Brings every rank's tokens below the limit, regardless of costs.
Status fit_tokens(const GlobalBatch& batch, std::span<int32_t> ranks) {
  const std::vector<int32_t> order = ascending_order(batch.tokens);
  const int64_t needed = floor_of(batch, batch.tokens, order);
  const std::string limit = "more than the " + std::to_string(batch.most_tokens) + " allowed";
  if (needed > batch.most_tokens) {
    return Status::invalid_argument(
        "a rank must hold " + std::to_string(needed) + " tokens, " + limit + ": " +
        std::to_string(sum(batch.tokens)) + " tokens on " + std::to_string(batch.world_size) +
        " ranks, " + std::to_string(batch.tokens[order.back()]) + " in the longest sample");
  }
  PeakReducer reducer(batch.tokens, order, ranks, batch.world_size, reducer_counts(batch));
  reducer.reduce(batch.most_tokens);
  const int64_t peak = *std::max_element(reducer.loads().begin(), reducer.loads().end());
  if (peak <= batch.most_tokens) return {};
  return Status::invalid_argument("found no assignment of less than " + std::to_string(peak) +
                                  " tokens on a rank, " + limit);
}

}  // namespace

Result<BalancePlan> plan_balance(const GlobalBatch& batch) {
  if (Status status = check_shares(batch); !status.ok()) return status;
  if (Status status = check(batch); !status.ok()) return status;
  const std::vector<int32_t> order = ascending_order(batch.costs);
  const int64_t most = batch.counts == SampleCounts::kEqual ? samples_per_rank(batch)
                                                            : std::numeric_limits<int64_t>::max();
  std::vector<int32_t> ranks = assign_greedily(batch.costs, order, batch.world_size, most);
  if (!batch.tokens.empty()) {
    if (Status status = fit_tokens(batch, ranks); !status.ok()) return status;
  }
  PeakReducer reducer(batch.costs, order, ranks, batch.world_size, reducer_counts(batch),
                      token_limit(batch));
  const int64_t floor = floor_of(batch, batch.costs, order);
  reducer.reduce(floor + floor / kToleranceDivisor);
  return BalancePlan{std::move(ranks), floor};
}

Result<std::vector<int32_t>> rebalance(const GlobalBatch& batch, std::span<const int32_t> ranks,
                                       int64_t target) {
  if (Status status = check(batch); !status.ok()) return status;
  if (ranks.size() != batch.costs.size()) {
    return Status::invalid_argument(std::to_string(batch.costs.size()) + " samples, but ranks of " +
                                    std::to_string(ranks.size()));
  }
  for (const int32_t rank : ranks) {
    if (rank < 0 || rank >= batch.world_size) {
      return Status::invalid_argument("rank " + std::to_string(rank) + " of " +
                                      std::to_string(batch.world_size) + " does not exist");
    }
  }
  std::vector<int32_t> changed(ranks.begin(), ranks.end());
  const std::vector<int32_t> order = ascending_order(batch.costs);
  PeakReducer reducer(batch.costs, order, changed, batch.world_size, reducer_counts(batch),
                      token_limit(batch));
  reducer.reduce(target);
  return changed;
}

}  // namespace freescale
