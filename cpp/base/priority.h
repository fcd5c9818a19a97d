#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace freescale {

// Smaller is more urgent, as for CUDA streams. The numbers are part of the Python surface.
enum class Priority : int8_t { kUrgent = -2, kHigh = -1, kNormal = 0, kLow = 1, kBackground = 2 };

inline constexpr int kPriorityLevels = 5;

// 0 (urgent) ... 4 (background): the index of a priority in per-level tables.
constexpr int priority_level(Priority priority) { return static_cast<int>(priority) + 2; }
constexpr Priority priority_of_level(int level) { return static_cast<Priority>(level - 2); }
constexpr bool is_priority(int value) { return value >= -2 && value <= 2; }

constexpr std::string_view priority_name(Priority priority) {
  constexpr std::string_view kNames[] = {"URGENT", "HIGH", "NORMAL", "LOW", "BACKGROUND"};
  return kNames[priority_level(priority)];
}

}  // namespace freescale
