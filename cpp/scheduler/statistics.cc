#include "cpp/scheduler/statistics.h"

namespace freescale {

OpStatistics& OpStatistics::operator+=(const OpStatistics& more) {
  calls += more.calls;
  bytes_sent += more.bytes_sent;
  bytes_received += more.bytes_received;
  blocked += more.blocked;
  in_flight += more.in_flight;
  return *this;
}

LinkStatistics& LinkStatistics::operator+=(const LinkStatistics& more) {
  bytes_sent += more.bytes_sent;
  bytes_received += more.bytes_received;
  return *this;
}

OpStatistics& Statistics::cell(OpKind op, Priority priority) {
  return cells_[static_cast<int>(op)][priority_level(priority)];
}

void Statistics::count_call(OpKind op, Priority priority) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++cell(op, priority).calls;
}

void Statistics::count_bytes(OpKind op, Priority priority, std::span<const LinkStatistics> moved) {
  std::lock_guard<std::mutex> lock(mutex_);
  OpStatistics& total = cell(op, priority);
  for (const LinkStatistics& each : moved) {
    if (each.bytes_sent == 0 && each.bytes_received == 0) continue;
    total.bytes_sent += each.bytes_sent;
    total.bytes_received += each.bytes_received;
    const auto [link, fresh] = links_.try_emplace(each.peer, each);
    if (!fresh) link->second += each;
  }
}

void Statistics::count_blocked(OpKind op, Priority priority, Nanoseconds time) {
  std::lock_guard<std::mutex> lock(mutex_);
  cell(op, priority).blocked += time;
}

void Statistics::count_in_flight(OpKind op, Priority priority, Nanoseconds time) {
  std::lock_guard<std::mutex> lock(mutex_);
  cell(op, priority).in_flight += time;
}

std::vector<OpStatistics> Statistics::snapshot() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<OpStatistics> used;
  for (int op = 0; op < static_cast<int>(OpKind::kCount); ++op) {
    for (int level = 0; level < kPriorityLevels; ++level) {
      OpStatistics copy = cells_[op][level];
      if (copy.calls == 0 && copy.bytes_sent == 0 && copy.bytes_received == 0) continue;
      copy.op = static_cast<OpKind>(op);
      copy.priority = priority_of_level(level);
      used.push_back(copy);
    }
  }
  return used;
}

std::vector<LinkStatistics> Statistics::links() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<LinkStatistics> used;
  for (const auto& [peer, link] : links_) used.push_back(link);
  return used;
}

void Statistics::reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  links_.clear();
  for (auto& row : cells_) {
    for (OpStatistics& cell : row) cell = {};
  }
}

}  // namespace freescale
