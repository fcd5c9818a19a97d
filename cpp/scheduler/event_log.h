#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/scheduler/path.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

enum class EventKind : uint8_t {
  kMessageOut,  // a message to another rank, from its grant to its last byte
  kMessageIn,   // one from another rank, from its matching to its last byte
  kCall,        // of a user, from the call to its end
  kWait,        // of a thread, until a call was over
  kJoin,        // of a thread, until another thread was over
};

// Something that took time on this rank.
struct Event {
  EventKind kind = EventKind::kCall;
  OpKind op = OpKind::kNone;              // not of joins
  Priority priority = Priority::kNormal;  // of a message: at its end
  bool failed = false;                    // calls
  PathSet paths;                          // calls
  int rank = 0;                           // the own one, of all ranks; messages and calls
  int peer = kAnySource;                  // the other one; messages
  uint64_t group = 0;                     // Group::id(); messages and calls
  uint64_t sequence = 0;                  // of a collective; messages and calls
  uint64_t bytes = 0;                     // of the message, or of the call's inputs
  uint64_t thread = 0;                    // that waits, as the system numbers it
  uint64_t joined = 0;                    // the one it joins
  Nanoseconds begin = 0;
  Nanoseconds ready = 0;  // calls and waits: OpResult::ready
  Nanoseconds end = 0;
};

// The last events of some kinds, in the order in which they ended. Thread-safe.
class EventLog {
 public:
  EventLog(std::initializer_list<EventKind> kinds, size_t capacity);

  uint32_t kinds() const { return kinds_; }  // a bit for each
  // As often as it was paused it has to be resumed before it keeps events again.
  void pause() { paused_.fetch_add(1, std::memory_order_relaxed); }
  void resume() { paused_.fetch_sub(1, std::memory_order_relaxed); }
  // The oldest event goes when there is no room.
  void note(const Event& event);
  // What there is, oldest first.
  std::vector<Event> events() const;
  // Removes and returns it.
  std::vector<Event> take();
  void clear();
  size_t size() const;
  // How many events have gone for want of room.
  uint64_t dropped() const;

 private:
  std::vector<Event> in_order() const;
  void forget();

  const uint32_t kinds_;
  const size_t capacity_;
  std::atomic<int> paused_{0};
  mutable std::mutex mutex_;  // guards the rest
  // A ring, for which there is room from the start: notes are made where time is measured.
  std::vector<Event> events_;
  size_t oldest_ = 0;  // once it is full
  uint64_t dropped_ = 0;
};

// The logs that are kept in this process. Thread-safe.
class EventLogs {
 public:
  // Never destroyed: works may complete after the destructors of static objects have run.
  static EventLogs& of_process();

  void add(std::shared_ptr<EventLog> log);
  void remove(const std::shared_ptr<EventLog>& log);

  // Whether anybody wants to know: ask before an Event is put together. Costs a load.
  bool want(EventKind kind) const;
  void note(const Event& event);

 private:
  void find_kinds();

  std::atomic<uint32_t> kinds_{0};
  std::mutex mutex_;  // guards logs_
  std::vector<std::shared_ptr<EventLog>> logs_;
};

}  // namespace freescale
