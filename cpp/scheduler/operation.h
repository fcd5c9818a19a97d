#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cpp/device/host_copy.h"
#include "cpp/scheduler/request.h"

namespace freescale {

struct Operation;
class Peer;

// A message on its way out.
struct Outgoing {
  enum class State {
    kUnsent,     // nothing was said to the peer yet
    kAnnounced,  // waits for the peer's grant, or for it to read the message
    kStreaming,  // granted: chunks, or the copies of a device, go out
    kLeaving,    // all is put, and the link still reads it
    kDone,
  };
  Operation* operation = nullptr;
  Peer* peer = nullptr;
  int rank = 0;
  std::vector<Segment> segments;
  size_t bytes = 0;
  size_t sent = 0;
  uint64_t last_put = 0;  // Link::put_count() after its last chunk so far
  uint64_t peer_token = 0;
  Nanoseconds begin = 0;  // when it was granted; 0: it went with its header, or the peer read it
  State state = State::kUnsent;
  // Of a device message that was granted, or of one that is staged: into the host's memory.
  std::shared_ptr<DeviceTransfer> transfer;
  bool staged = false;  // from a device to another host: `segments` are memory of this host
  int level = 0;        // for LevelQueue
  uint64_t serial = 0;  // for LevelQueue

  // Whether copies of a device move it.
  bool in_device() const;
};

// A message that is awaited.
struct Incoming {
  enum class State {
    kAwaited,    // no header yet
    kStreaming,  // granted: chunks, or the copies of a device, come in
    kPulling,    // this side reads it from the peer's memory
    kDone,
  };
  Operation* operation = nullptr;
  Peer* peer = nullptr;  // null while the source is open
  int rank = 0;          // kAnySource while the source is open
  std::vector<Segment> segments;
  size_t bytes = 0;
  size_t landed = 0;
  uint64_t peer_token = 0;
  uint64_t pull_address = 0;      // kPulling: where the message lies in the peer
  uint64_t pull_revocations = 0;  // kPulling: the peer's count when it announced the message
  Nanoseconds begin = 0;          // when it was matched; 0: it came with its header
  State state = State::kAwaited;
  // Of a device message that was granted, or of one that is staged: out of the host's memory.
  std::shared_ptr<DeviceTransfer> transfer;
  bool arrived = false;  // of the granted: see Protocol::hear_of_arrived()
  bool staged = false;   // as Outgoing::staged
  int level = 0;         // for LevelQueue
  uint64_t serial = 0;   // for LevelQueue

  bool in_device() const;
};

// The part of a plan that stays on this rank.
struct LocalCopy {
  Operation* operation = nullptr;
  std::vector<Segment> from;
  std::vector<Segment> to;
  size_t bytes = 0;
  size_t copied = 0;
  std::shared_ptr<DeviceTransfer> transfer;  // in device memory
  int level = 0;                             // for LevelQueue
  uint64_t serial = 0;                       // for LevelQueue
};

// A plan in flight. Belongs to the holder of the progress lock.
struct Operation {
  Request request;  // its plan's messages have moved into the three lists below
  uint64_t token = 0;
  std::vector<Outgoing> outgoing;
  std::vector<Incoming> incoming;
  std::vector<LocalCopy> local;
  size_t pending = 0;         // messages and copies that are not done
  size_t unheard = 0;         // ranks that are waited for, and have not come to it
  uint64_t posted_after = 0;  // so many looks at the records of peers
  Nanoseconds ready = 0;      // see OpResult
  CopyMode copy_mode = CopyMode::kCached;
  PathSet paths;           // that its messages took so far
  Status late;             // see OpResult
  bool submitted = false;  // Request::on_submitted was called
  // Of the ranks that it sends to from device memory: whether a look has missed one, or found all.
  bool devices_awaited = false;
  bool devices_came = false;

  OpKind kind() const { return request.plan.signature.op; }
  // Whether messages with bytes in them lie in device memory.
  bool on_device() const { return request.device != nullptr; }
  bool point_to_point() const { return kind() == OpKind::kSend || kind() == OpKind::kRecv; }
  // "rank 1: all_to_all_single #12 of group 'world'"
  std::string describe() const;
  // The same failure, with that in front.
  Status failed_by(const Status& why) const;
  // "rank 2 (has not called it), rank 3 (1048576 of 4194304 bytes arrived)"
  std::string describe_missing() const;

  Outgoing* outgoing_to(const Peer* peer);
  Incoming* incoming_from(const Peer* peer);
};

inline bool Outgoing::in_device() const { return operation->on_device() && bytes > 0 && !staged; }
inline bool Incoming::in_device() const { return operation->on_device() && bytes > 0 && !staged; }

// What an operation in flight waits for.
struct OpenOperation {
  uint64_t group = 0;     // Group::id()
  uint64_t sequence = 0;  // 0: point-to-point
  std::string missing;    // Operation::describe_missing()
};

// Checks the request's plan against its group and spreads it over the operation's lists; their
// peers are not resolved yet.
Status unfold_plan(Operation& operation);
// By what the operation lands, and whence; once its peers are known.
void choose_copy_mode(Operation& operation);

// Copies `from` into the message made of `segments`, from `offset` on.
void scatter_bytes(const std::vector<Segment>& segments, size_t offset,
                   std::span<const std::byte> from, CopyMode mode);

}  // namespace freescale
