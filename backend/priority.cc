#include "backend/priority.h"

#include <utility>

#include <c10/util/Exception.h>

#include "backend/dtype.h"

namespace freescale {
namespace {

thread_local std::optional<Priority> thread_priority;

template <typename Name>
std::string known_names(int count, Name name) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    if (i > 0) known += ", ";
    known += name(i);
  }
  return known;
}

OpKind parse_op(std::string_view text, std::string_view rule) {
  constexpr int kOps = static_cast<int>(OpKind::kCount);
  for (int i = 1; i < kOps; ++i) {
    if (op_name(static_cast<OpKind>(i)) == text) return static_cast<OpKind>(i);
  }
  TORCH_CHECK_VALUE(false, "freescale: FREESCALE_POLICY: no operation \"", text, "\" in \"", rule,
                    "\"; there are ", known_names(kOps - 1, [](int i) {
                      return op_name(static_cast<OpKind>(i + 1));
                    }));
}

std::string parse_dtype(std::string_view text, std::string_view rule) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::NumOptions); ++i) {
    if (dtype_name(static_cast<c10::ScalarType>(i)) == text) return std::string(text);
  }
  TORCH_CHECK_VALUE(false, "freescale: FREESCALE_POLICY: no dtype \"", text, "\" in \"", rule,
                    "\"; write it as torch prints it, e.g. int64");
}

Priority parse_priority(std::string_view text, std::string_view rule) {
  for (int level = 0; level < kPriorityLevels; ++level) {
    if (priority_name(priority_of_level(level)) == text) return priority_of_level(level);
  }
  TORCH_CHECK_VALUE(false, "freescale: FREESCALE_POLICY: no priority \"", text, "\" in \"", rule,
                    "\"; there are ", known_names(kPriorityLevels, [](int i) {
                      return priority_name(priority_of_level(i));
                    }));
}

}  // namespace

std::optional<Priority> set_thread_priority(std::optional<Priority> priority) {
  return std::exchange(thread_priority, priority);
}

PriorityPolicy::Rule PriorityPolicy::parse_rule(std::string_view text) {
  const size_t equals = text.find('=');
  TORCH_CHECK_VALUE(equals != std::string_view::npos, "freescale: FREESCALE_POLICY: \"", text,
                    "\" is not of the form op[:dtype]=priority");
  const std::string_view what = text.substr(0, equals);
  const size_t colon = what.find(':');
  Rule rule;
  rule.op = parse_op(what.substr(0, colon), text);
  if (colon != std::string_view::npos) rule.dtype = parse_dtype(what.substr(colon + 1), text);
  rule.priority = parse_priority(text.substr(equals + 1), text);
  return rule;
}

PriorityPolicy PriorityPolicy::parse(std::string_view text) {
  PriorityPolicy policy;
  while (!text.empty()) {
    const size_t comma = text.find(',');
    policy.rules_.push_back(parse_rule(text.substr(0, comma)));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return policy;
}

std::optional<Priority> PriorityPolicy::find(OpKind op, c10::ScalarType dtype) const {
  std::optional<Priority> found;
  for (const Rule& rule : rules_) {
    if (rule.op != op) continue;
    if (rule.dtype.empty()) {
      found = rule.priority;
    } else if (rule.dtype == dtype_name(dtype)) {
      return rule.priority;
    }
  }
  return found;
}

Priority resolve_priority(Priority group, const PriorityPolicy& policy, OpKind op,
                          c10::ScalarType dtype) {
  if (thread_priority) return *thread_priority;
  if (group != Priority::kNormal) return group;
  return policy.find(op, dtype).value_or(Priority::kNormal);
}

}  // namespace freescale
