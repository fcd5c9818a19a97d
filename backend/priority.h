#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "cpp/base/priority.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// The priority that this thread's calls have whatever the group says; nullopt: none. Returns the
// previous one.
std::optional<Priority> set_thread_priority(std::optional<Priority> priority);

// Priorities by operation and dtype, for code that cannot be changed.
class PriorityPolicy {
 public:
  PriorityPolicy() = default;

  // Reads "all_to_all_single:int64=URGENT,all_reduce=NORMAL": op[:dtype]=priority, separated by
  // commas. Throws c10::ValueError, which names the part that is wrong and what is known.
  static PriorityPolicy parse(std::string_view text);

  // A rule with the dtype goes before one without.
  std::optional<Priority> find(OpKind op, c10::ScalarType dtype) const;

 private:
  struct Rule {
    OpKind op;
    std::string dtype;  // empty: any
    Priority priority;
  };
  static Rule parse_rule(std::string_view text);

  std::vector<Rule> rules_;
};

// In this order: the thread's, the group's unless it is the default, the policy's, the default.
Priority resolve_priority(Priority group, const PriorityPolicy& policy, OpKind op,
                          c10::ScalarType dtype);

}  // namespace freescale
