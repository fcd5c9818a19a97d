#pragma once

#include <cstddef>
#include <vector>

namespace freescale {

// Which ranks of a group share a host; the same on all members.
class HostMap {
 public:
  HostMap() = default;
  // `host_of[r]`: a number of rank r's host, from 0 on.
  explicit HostMap(std::vector<int> host_of);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_of_[rank]; }
  // Ascending.
  const std::vector<int>& ranks_on(int host) const { return ranks_[host]; }
  // The rank of `host` that gets what `rank` of another host sends there: the ranks of a host take
  // turns, so that all of them use the network.
  int entry(int rank, int host) const;
  // The ranks of other hosts to which `rank` is the entry of its host; ascending.
  const std::vector<int>& served_by(int rank) const { return served_[rank]; }
  // Whether there is anything to be had from knowing it.
  bool spans_hosts_with_several() const { return hosts() > 1 && host_of_.size() > ranks_.size(); }

 private:
  std::vector<int> host_of_;
  std::vector<int> index_;                // among the ranks of its host
  std::vector<std::vector<int>> ranks_;   // by host
  std::vector<std::vector<int>> served_;  // by rank
};

}  // namespace freescale
