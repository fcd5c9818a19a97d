#include "cpp/scheduler/event_log.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace freescale {
namespace {

uint32_t bit(EventKind kind) { return uint32_t{1} << static_cast<unsigned>(kind); }

uint32_t bits(std::initializer_list<EventKind> kinds) {
  uint32_t all = 0;
  for (const EventKind kind : kinds) all |= bit(kind);
  return all;
}

}  // namespace

EventLog::EventLog(std::initializer_list<EventKind> kinds, size_t capacity)
    : kinds_(bits(kinds)), capacity_(capacity) {
  events_.reserve(capacity);
}

void EventLog::note(const Event& event) {
  if (paused_.load(std::memory_order_relaxed) > 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.size() < capacity_) {
    events_.push_back(event);
    return;
  }
  events_[oldest_] = event;
  oldest_ = (oldest_ + 1) % capacity_;
  ++dropped_;
}

std::vector<Event> EventLog::events() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return in_order();
}

std::vector<Event> EventLog::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Event> found = in_order();
  forget();
  return found;
}

void EventLog::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  forget();
}

std::vector<Event> EventLog::in_order() const {
  std::vector<Event> found(events_.size());
  std::rotate_copy(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                   events_.end(), found.begin());
  return found;
}

void EventLog::forget() {
  events_.clear();
  oldest_ = 0;
}

size_t EventLog::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return events_.size();
}

uint64_t EventLog::dropped() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return dropped_;
}

EventLogs& EventLogs::of_process() {
  static auto* const logs = new EventLogs();
  return *logs;
}

void EventLogs::add(std::shared_ptr<EventLog> log) {
  std::lock_guard<std::mutex> lock(mutex_);
  logs_.push_back(std::move(log));
  find_kinds();
}

void EventLogs::remove(const std::shared_ptr<EventLog>& log) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase(logs_, log);
  find_kinds();
}

void EventLogs::find_kinds() {
  uint32_t all = 0;
  for (const auto& log : logs_) all |= log->kinds();
  kinds_.store(all, std::memory_order_relaxed);
}

bool EventLogs::want(EventKind kind) const {
  return (kinds_.load(std::memory_order_relaxed) & bit(kind)) != 0;
}

void EventLogs::note(const Event& event) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& log : logs_) {
    if ((log->kinds() & bit(event.kind)) != 0) log->note(event);
  }
}

}  // namespace freescale
