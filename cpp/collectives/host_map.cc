#include "cpp/collectives/host_map.h"

#include <utility>

namespace freescale {

HostMap::HostMap(std::vector<int> host_of) : host_of_(std::move(host_of)) {
  for (size_t rank = 0; rank < host_of_.size(); ++rank) {
    const auto host = static_cast<size_t>(host_of_[rank]);
    if (host >= ranks_.size()) ranks_.resize(host + 1);
    index_.push_back(static_cast<int>(ranks_[host].size()));
    ranks_[host].push_back(static_cast<int>(rank));
  }
  served_.resize(host_of_.size());
  for (int rank = 0; rank < static_cast<int>(host_of_.size()); ++rank) {
    for (int host = 0; host < hosts(); ++host) {
      if (host != host_of_[rank]) served_[entry(rank, host)].push_back(rank);
    }
  }
}

int HostMap::entry(int rank, int host) const {
  const std::vector<int>& there = ranks_[host];
  return there[static_cast<size_t>(index_[rank]) % there.size()];
}

}  // namespace freescale
