// The planner's promises on batches of many shapes. tests/python/test_balance_planner.py compares
// the plans themselves with those of a reference.

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cpp/balance/planner.h"
#include "tests/cpp/check.h"

namespace freescale {
namespace {

using Amounts = std::vector<int64_t>;
using Ranks = std::vector<int32_t>;

GlobalBatch batch_of(const Amounts& costs, int world_size,
                     SampleCounts counts = SampleCounts::kEqual) {
  return {costs, world_size, counts, {}, 0};
}

// Many short, few long, as lengths of user histories are.
Amounts skewed(size_t samples, unsigned seed) {
  std::mt19937_64 random(seed);
  Amounts costs(samples);
  for (int64_t& cost : costs) {
    const auto short_one = static_cast<int64_t>(random() % 1000);
    cost = 10 + short_one * short_one / (1 + static_cast<int64_t>(random() % 100));
  }
  return costs;
}

Amounts sums_by_rank(const Amounts& amounts, const Ranks& ranks, int world_size) {
  Amounts sums(world_size);
  for (size_t i = 0; i < amounts.size(); ++i) sums[ranks[i]] += amounts[i];
  return sums;
}

int64_t peak(const Amounts& amounts, const Ranks& ranks, int world_size) {
  const Amounts sums = sums_by_rank(amounts, ranks, world_size);
  return *std::max_element(sums.begin(), sums.end());
}

BalancePlan plan(const GlobalBatch& batch) {
  Result<BalancePlan> result = plan_balance(batch);
  CHECK_OK(result);
  return result.value();
}

void check_fails(const GlobalBatch& batch, const std::string& part) {
  const Result<BalancePlan> result = plan_balance(batch);
  CHECK(!result.ok());
  const std::string message = result.status().message();
  if (message.find(part) == std::string::npos) CHECK_EQ(message, part);
}

TEST(balance_gives_every_rank_as_many_samples) {
  for (const int world_size : {1, 2, 3, 7, 64}) {
    for (const int per_rank : {1, 2, 5, 32}) {
      const Amounts costs = skewed(static_cast<size_t>(world_size) * per_rank, per_rank);
      const Ranks ranks = plan(batch_of(costs, world_size)).ranks;
      for (int rank = 0; rank < world_size; ++rank) {
        CHECK_EQ(std::count(ranks.begin(), ranks.end(), rank), per_rank);
      }
    }
  }
}

TEST(balance_comes_within_two_thousandths_of_the_floor) {
  for (const auto counts : {SampleCounts::kEqual, SampleCounts::kUneven}) {
    for (const int world_size : {2, 8, 64, 256}) {
      const Amounts costs = skewed(static_cast<size_t>(world_size) * 32, world_size);
      const BalancePlan found = plan(batch_of(costs, world_size, counts));
      CHECK_LE(peak(costs, found.ranks, world_size), found.floor + found.floor / 500);
    }
  }
}

TEST(balance_puts_the_cheapest_beside_a_sample_that_dominates) {
  Amounts costs = skewed(8 * 4, 1);
  costs[13] = 1'000'000'000;
  Amounts cheapest = costs;
  std::sort(cheapest.begin(), cheapest.end());
  const BalancePlan found = plan(batch_of(costs, 8));
  CHECK_EQ(found.floor, costs[13] + cheapest[0] + cheapest[1] + cheapest[2]);
  CHECK_EQ(peak(costs, found.ranks, 8), found.floor);
}

TEST(balance_uneven_leaves_no_rank_without_a_sample) {
  for (const Amounts& costs : {Amounts{5, 0, 0, 0}, Amounts{0, 0, 0, 0}, Amounts{9, 9, 1, 1}}) {
    const Ranks ranks = plan(batch_of(costs, 4, SampleCounts::kUneven)).ranks;
    for (int rank = 0; rank < 4; ++rank) CHECK_EQ(std::count(ranks.begin(), ranks.end(), rank), 1);
  }
  Amounts costs(64, 1);
  costs[0] = 60;
  const Ranks ranks = plan(batch_of(costs, 2, SampleCounts::kUneven)).ranks;
  CHECK_EQ(peak(costs, ranks, 2), 62);
}

TEST(balance_keeps_tokens_within_the_limit) {
  const Amounts costs = skewed(8 * 16, 3);
  const Amounts tokens = skewed(costs.size(), 4);  // have nothing to do with the costs
  const Ranks free = plan(batch_of(costs, 8)).ranks;
  const Amounts sums = sums_by_rank(tokens, free, 8);
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  const int64_t limit = total / 8 + total / 8 / 100;
  CHECK_GT(peak(tokens, free, 8), limit);
  for (const auto counts : {SampleCounts::kEqual, SampleCounts::kUneven}) {
    const GlobalBatch batch{costs, 8, counts, tokens, limit};
    CHECK_LE(peak(tokens, plan(batch).ranks, 8), limit);
  }
}

TEST(balance_says_why_tokens_cannot_fit) {
  const Amounts costs(8, 1);
  const Amounts tokens{50, 10, 10, 10, 10, 10, 10, 10};
  check_fails({costs, 2, SampleCounts::kEqual, tokens, 79},
              "a rank must hold 80 tokens, more than the 79 allowed: 120 tokens on 2 ranks, 50 in "
              "the longest sample");
  check_fails({costs, 2, SampleCounts::kUneven, tokens, 59}, "a rank must hold 60 tokens");
  CHECK_OK(plan_balance({costs, 2, SampleCounts::kEqual, tokens, 80}));
  // One of the ranks gets two of the three long ones, which no bound on sums can tell.
  const Amounts unlucky{4, 4, 4, 1, 1, 1};
  check_fails({unlucky, 2, SampleCounts::kEqual, unlucky, 8},
              "found no assignment of less than 9 tokens");
  CHECK_OK(plan_balance({unlucky, 2, SampleCounts::kEqual, unlucky, 9}));
}

TEST(balance_refuses_malformed_batches) {
  check_fails(batch_of({}, 1), "0 samples on 1 ranks: every rank needs a sample");
  check_fails(batch_of({1, 2}, 3), "2 samples on 3 ranks: every rank needs a sample");
  check_fails(batch_of({1, 2}, 0), "2 samples on 0 ranks");
  check_fails(batch_of({1, 2, 3}, 2), "3 samples on 2 ranks cannot be equally many on each");
  check_fails(batch_of({1, -2}, 2), "cost -2 of sample 1 is negative");
  check_fails(batch_of({kLargestTotal, 1}, 2), "the sum of all costs is beyond 2^61");
  const Amounts costs{1, 2};
  const Amounts one{1};
  check_fails({costs, 2, SampleCounts::kEqual, one, 5}, "tokens of 1");
}

TEST(rebalance_moves_few_samples) {
  for (const int world_size : {2, 8, 64}) {
    const size_t samples = static_cast<size_t>(world_size) * 128;
    const Amounts costs = skewed(samples, world_size);
    Ranks ranks(samples);
    for (size_t i = 0; i < samples; ++i) ranks[i] = static_cast<int32_t>(i % world_size);
    int64_t total = 0;
    for (const int64_t cost : costs) total += cost;
    const int64_t target = total / world_size + total / world_size / 20;
    CHECK_GT(peak(costs, ranks, world_size), target);
    const auto result = rebalance(batch_of(costs, world_size), ranks, target);
    CHECK_OK(result);
    CHECK_LE(peak(costs, result.value(), world_size), target);
    size_t moved = 0;
    for (size_t i = 0; i < samples; ++i) moved += result.value()[i] != ranks[i] ? 1 : 0;
    CHECK_LE(moved, samples / 20);
  }
}

TEST(rebalance_leaves_alone_what_is_within_the_target) {
  const Amounts costs{5, 1, 1, 5};
  const Ranks ranks{0, 0, 1, 1};
  const auto result = rebalance(batch_of(costs, 2), ranks, 6);
  CHECK_OK(result);
  CHECK_EQ(result.value(), ranks);
}

TEST(rebalance_takes_any_numbers_of_samples) {
  const Amounts costs{9, 8, 1, 2};
  const Ranks ranks{0, 0, 0, 2};  // three, none and one
  const GlobalBatch kept{costs, 3, SampleCounts::kEqual, {}, 0};
  const auto exchanged = rebalance(kept, ranks, 7);
  CHECK_OK(exchanged);
  CHECK_EQ(exchanged.value(), (Ranks{2, 0, 0, 0}));
  const GlobalBatch free{costs, 3, SampleCounts::kUneven, {}, 0};
  const auto given = rebalance(free, ranks, 7);
  CHECK_OK(given);
  CHECK_EQ(peak(costs, given.value(), 3), 9);
  const auto nothing = rebalance(GlobalBatch{{}, 3, SampleCounts::kEqual, {}, 0}, {}, 0);
  CHECK_OK(nothing);
  CHECK_EQ(nothing.value().size(), size_t{0});
}

TEST(rebalance_keeps_tokens_within_the_limit) {
  const Amounts costs{9, 7, 1, 1};
  const Amounts tokens{1, 1, 1, 4};
  const Ranks ranks{0, 0, 1, 1};
  const GlobalBatch free{costs, 2, SampleCounts::kEqual, {}, 0};
  const GlobalBatch limited{costs, 2, SampleCounts::kEqual, tokens, 5};
  const auto best = rebalance(free, ranks, 0);
  const auto within = rebalance(limited, ranks, 0);
  CHECK_OK(best);
  CHECK_OK(within);
  CHECK_EQ(peak(costs, best.value(), 2), 10);
  CHECK_EQ(peak(costs, within.value(), 2), 10);
  CHECK_EQ(peak(tokens, within.value(), 2), 5);
}

TEST(rebalance_refuses_ranks_that_do_not_exist) {
  const Amounts costs{5, 1};
  const Ranks beyond{0, 2};
  const Ranks below{-1, 0};
  const Ranks short_one{0};
  CHECK_EQ(rebalance(batch_of(costs, 2), beyond, 6).status().message(),
           "rank 2 of 2 does not exist");
  CHECK(!rebalance(batch_of(costs, 2), below, 6).ok());
  CHECK(!rebalance(batch_of(costs, 2), short_one, 6).ok());
}

}  // namespace
}  // namespace freescale
