#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "backend/environment.h"
#include "backend/process_engine.h"
#include "cpp/base/status.h"
#include "cpp/scheduler/flight_recorder.h"
#include "cpp/scheduler/group.h"

namespace freescale {

// What the works of a group share with its Backend, which they may outlive. Owns neither the group,
// whose links must go when it is closed, nor the engine.
class GroupContext {
 public:
  GroupContext(const std::shared_ptr<Group>& group, const std::shared_ptr<ProcessEngine>& process,
               Environment environment, std::shared_ptr<const FlightGroup> flight_group)
      : environment_(std::move(environment)),
        flight_group_(std::move(flight_group)),
        group_(group),
        process_(process),
        engine_(&process->engine()) {}

  const Environment& environment() const { return environment_; }
  const std::shared_ptr<const FlightGroup>& flight_group() const { return flight_group_; }

  // Null when the group was closed.
  std::shared_ptr<Group> lock_group() const { return group_.lock(); }
  // For callers from outside, who keep the engine alive by holding it. Null when it is gone; then
  // all its operations have completed. Never for completions: see ProcessEngine.
  std::shared_ptr<ProcessEngine> lock_process() const { return process_.lock(); }
  // For completions only, which the engine itself calls.
  Engine& engine_in_completion() const { return *engine_; }

  // Works for which a stream waits, and which are not over: the group stays open for them. Works
  // are named by their address.
  void note_awaited(const void* work) {
    std::lock_guard<std::mutex> lock(mutex_);
    awaited_.insert(work);
  }
  void note_over(const void* work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (awaited_.erase(work) != 0 && awaited_.empty()) none_awaited_.notify_all();
  }
  // Each is over by its own deadline.
  void wait_for_awaited() {
    std::unique_lock<std::mutex> lock(mutex_);
    none_awaited_.wait(lock, [this] { return awaited_.empty(); });
  }

  // What went wrong first: for Backend::getError(), and for the peers when this rank leaves.
  void note_failure(const Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (first_failure_.ok()) first_failure_ = status;
  }
  Status first_failure() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return first_failure_;
  }

 private:
  const Environment environment_;
  const std::shared_ptr<const FlightGroup> flight_group_;
  const std::weak_ptr<Group> group_;
  const std::weak_ptr<ProcessEngine> process_;
  Engine* const engine_;
  mutable std::mutex mutex_;  // guards the next three
  Status first_failure_;
  std::set<const void*> awaited_;
  std::condition_variable none_awaited_;
};

}  // namespace freescale
