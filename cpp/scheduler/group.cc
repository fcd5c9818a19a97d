#include "cpp/scheduler/group.h"

#include <utility>

namespace freescale {

Group::Group(uint64_t id, std::string name, int rank, std::vector<std::shared_ptr<Link>> links,
             uint64_t first_sequence, std::vector<uint64_t> global_ranks)
    : id_(id),
      name_(std::move(name)),
      rank_(rank),
      links_(std::move(links)),
      global_ranks_(std::move(global_ranks)),
      sequence_(first_sequence) {}

}  // namespace freescale
