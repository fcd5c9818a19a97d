#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/scheduler/completion.h"
#include "cpp/scheduler/operation.h"
#include "cpp/scheduler/request.h"
#include "cpp/scheduler/statistics.h"
#include "cpp/transport/shm/doorbell.h"

namespace freescale {

struct EngineOptions {
  // An operation whose priority level got no chunk on a link for this long climbs one level.
  std::chrono::nanoseconds aging = std::chrono::milliseconds(100);
  // How long a waiting thread polls before it sleeps.
  std::chrono::nanoseconds spin = std::chrono::microseconds(50);
  // Set where ranks outnumber cores: waiting threads give the core away instead of polling.
  bool oversubscribed = false;
};

class EngineCore;

// Moves the bytes of all groups of this process: one per process and device. Thread-safe; see
// docs/threading.md. State belongs to whoever holds the progress lock: a caller inside wait() or
// the engine's own thread.
class Engine {
 public:
  // `doorbell` is the one that this process's peers ring; it must outlive the engine.
  Engine(EngineOptions options, Doorbell& doorbell);
  // Stops the thread. Operations still in flight end as kCancelled first.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Before the group's first operation: from here on its peers' messages are taken in.
  void add_group(std::shared_ptr<Group> group);

  // Starts an operation. Never blocks on a peer. Every failure, bad arguments included, is reported
  // through on_done.
  void submit(Request request);

  // Blocks until `completion` is set or `deadline` passes (false). Helps to move bytes meanwhile.
  bool wait(Completion& completion, Deadline deadline);

  // Tells every peer of the group that this rank gave up collective `sequence` before it began,
  // so that they fail at once with `reason` and do not wait for the timeout.
  void reject(Group& group, uint64_t sequence, OpKind op, const std::string& reason);

  // Ends all operations of the group with kCancelled and `reason`, here and (by a notice) at the
  // peers; later submissions fail too. Local, never blocks on a peer.
  void close_group(Group& group, const std::string& reason);

  // For when more ranks turn up on this host.
  void set_oversubscribed(bool oversubscribed);

  // What is in flight, for people who look for what hangs. Takes the progress lock.
  std::vector<OpenOperation> open_operations();

  Statistics& statistics();

 private:
  std::unique_ptr<EngineCore> core_;
};

}  // namespace freescale
