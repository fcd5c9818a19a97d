#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace freescale {

// Lowers the load of the heaviest rank, a few samples at a time: the heaviest gives one to the
// lightest and takes a cheaper one back, the two whose difference comes closest to evening the pair
// out. Few samples move, so it serves to polish a plan and to correct one that has become uneven.
class PeakReducer {
 public:
  // A second quantity of which no rank may hold more than `most`, such as tokens for memory.
  struct Limit {
    std::span<const int64_t> amounts;  // of each sample
    int64_t most;
  };

  // Whether a sample may also be given without one in return. A rank always keeps one sample.
  enum class Counts { kKept, kFree };

  // `order` is ascending_order(costs). `ranks`, the rank of each sample, is changed in place, and
  // must satisfy the limit. All spans must outlive the object.
  PeakReducer(std::span<const int64_t> costs, std::span<const int32_t> order,
              std::span<int32_t> ranks, int world_size, Counts counts,
              std::optional<Limit> limit = std::nullopt);

  // Goes on until no rank is loaded by more than `target`, no exchange lowers the heaviest, or
  // there were as many exchanges as there are samples.
  void reduce(int64_t target);

  std::span<const int64_t> loads() const { return loads_; }

 private:
  struct Sample {
    int64_t cost;
    int32_t index;

    auto operator<=>(const Sample&) const = default;
  };

  // Places in the two ranks' lists.
  struct Exchange {
    size_t given;
    std::optional<size_t> taken;
  };

  bool relieve(int32_t heavy);
  bool exchange(int32_t heavy, int32_t light);
  std::optional<Exchange> best_exchange(int32_t heavy, int32_t light) const;
  bool fits(int32_t heavy, int32_t light, int32_t given, std::optional<int32_t> taken) const;
  void move(size_t place, int32_t from, int32_t to);

  std::span<int32_t> ranks_;
  Counts counts_;
  std::optional<Limit> limit_;
  std::vector<std::vector<Sample>> held_;  // by rank; ascending by cost, then by index
  std::vector<int64_t> loads_;             // by rank
  std::vector<int64_t> amounts_;           // by rank, of the limited quantity
};

}  // namespace freescale
