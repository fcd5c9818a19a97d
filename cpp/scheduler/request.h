#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/base/status.h"
#include "cpp/scheduler/group.h"
#include "cpp/scheduler/path.h"
#include "cpp/scheduler/plan.h"
#include "cpp/transport/device_call.h"

namespace freescale {

struct OpResult {
  Status status;
  // Not ok: an earlier collective of the group failed at a peer after it was done here; whoever
  // asks for this one's result is told.
  Status late = {};
  int source = kAnySource;  // group rank the message came from (receives); kAnySource otherwise
  PathSet paths = {};       // so far, when it failed
  // When the last of the ranks that it waited for had come to it, as far as this rank knew; when it
  // failed, if one had not come by then. 0: all were there when this rank first looked. Of device
  // memory: when the streams of those that it sends to had come, too.
  Nanoseconds ready = 0;
};

// One operation handed to the engine.
struct Request {
  std::shared_ptr<Group> group;
  Plan plan;
  // Collectives: number from Group::next_sequence(), the same on all ranks, and the part of a
  // collective that is made of several exchanges. Point-to-point: unused.
  uint64_t sequence = 0;
  uint32_t part = 0;
  uint32_t tag = 0;  // point-to-point only
  Priority priority = Priority::kNormal;
  Deadline deadline = Deadline::never();
  std::chrono::nanoseconds timeout{0};  // what the user asked for; for the message only
  // The caller goes straight into wait(): do not wake the engine thread for this.
  bool caller_waits = false;
  // Of a plan whose segments lie in device memory; else null.
  std::shared_ptr<DeviceCall> device;
  // Of those: called at most once, as on_done is and before it, when nothing that the operation
  // still waits for needs a call of a driver, on whatever rank. May be null.
  std::function<void()> on_submitted;
  // Keeps the memory of the plan's sends alive. Called at most once, before on_done, if the
  // operation ends while a link still reads there, as it may when it fails. Null: nothing keeps it,
  // so it must outlive the engine.
  std::function<std::shared_ptr<const void>()> keep_memory;
  // Called exactly once, with no lock held, on the engine thread or on a thread inside wait() or
  // submit(). May submit further operations; must not throw.
  std::function<void(const OpResult&)> on_done;
};

}  // namespace freescale
