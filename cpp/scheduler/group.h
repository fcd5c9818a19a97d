#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace freescale {

class Link;

// The members of one process group, seen from one of them. Immutable but for the counters; shared
// by the operations that run on it.
class Group {
 public:
  // `links[r]` leads to rank r and is null for the own rank. `id` is the same random number on all
  // members; `first_sequence` too (tests start near the wrap). `global_ranks`: of the members among
  // all ranks; empty: the same as in the group.
  Group(uint64_t id, std::string name, int rank, std::vector<std::shared_ptr<Link>> links,
        uint64_t first_sequence = 0, std::vector<uint64_t> global_ranks = {});

  uint64_t id() const { return id_; }
  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(links_.size()); }
  int global_rank(int rank) const {
    return global_ranks_.empty() ? rank : static_cast<int>(global_ranks_[rank]);
  }
  const std::shared_ptr<Link>& shared_link(int rank) const { return links_[rank]; }

  // The number of the next collective: every member calls collectives of a group in one order.
  uint64_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed) + 1; }
  uint64_t last_sequence() const { return sequence_.load(std::memory_order_relaxed); }

 private:
  const uint64_t id_;
  const std::string name_;
  const int rank_;
  const std::vector<std::shared_ptr<Link>> links_;
  const std::vector<uint64_t> global_ranks_;
  std::atomic<uint64_t> sequence_;
};

}  // namespace freescale
