#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"
#include "cpp/device/segment.h"

namespace freescale {

// What a chunk belongs to; opaque to the transport.
struct ChunkTag {
  uint64_t token = 0;   // the receiver's operation
  uint64_t offset = 0;  // of the chunk in the message
};

// Gets what a link receives. Called by the thread that polls, inside the call.
class LinkSink {
 public:
  virtual ~LinkSink() = default;
  // `record` is valid during the call only.
  virtual void on_record(std::span<const std::byte> record) = 0;
  // The sink copies `data` to where it belongs, or drops it.
  virtual void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) = 0;
};

// What went beside a link's lanes.
struct AsideMessage {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};

// The way to one peer process: two lanes, both reliable and in order.
//   * Control lane: records of a few bytes up to max_record_bytes(), for headers and for messages
//     so small that they travel inline.
//   * Chunk lane: pieces of up to chunk_bytes(), at one of kPriorityLevels levels, in order within
//     a level. Each level has credits; a less urgent one can never spend the last of them, so an
//     urgent chunk waits for at most one window of bulk.
// A link knows nothing of operations, groups, timeouts or priorities beyond the level's number.
// All calls but those about failure come from the holder of the engine's progress lock. No call
// blocks. A sender must call notify() after a batch of sends or puts; a refused try_send() or
// can_put() needs nothing: the peer's polling wakes this side when there is room again, unless
// retry_at() tells a time.
class Link {
 public:
  virtual ~Link() = default;

  virtual size_t max_record_bytes() const = 0;
  virtual size_t chunk_bytes() const = 0;

  // Copies `head` and `body` as one record; false when the lane is full: try again later.
  virtual bool try_send(std::span<const std::byte> head, std::span<const Segment> body) = 0;
  // Whether small messages, too, should go as chunks for now: records would overtake the rest.
  virtual bool prefers_chunks() const { return false; }
  // Takes in what has come; whether there was any. In shared memory it is just there. Any call for
  // a link of this process may hand chunks of this one to its chunk sink at once, which saves a
  // copy; poll_record() and poll_chunk() hand over the rest.
  virtual bool receive() { return false; }
  // The same one in all polls. It must be there until the last receive().
  virtual void set_chunk_sink(LinkSink&) {}
  // Hands over the next record; false when there is none.
  virtual bool poll_record(LinkSink& sink) = 0;

  // Puts the pieces (at most chunk_bytes() in all) as one chunk; false when the level's credits are
  // spent.
  virtual bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) = 0;
  // How many chunks were put so far, and whether the pieces of the first `count` of them are no
  // longer read. Most links copy. One that says no wakes this side when it would say yes.
  virtual uint64_t put_count() const { return 0; }
  virtual bool has_read(uint64_t) { return true; }
  // Right after a try_put(): the level has more to put, as soon as the link takes it.
  virtual void goes_on(int) {}
  // Whether try_put() would take a chunk of so many bytes now.
  virtual bool can_put(int level, size_t bytes) = 0;
  // After a put that was refused for the sake of time: when it should be tried again, by now_ns().
  // Else kNoRetry.
  static constexpr Nanoseconds kNoRetry = std::numeric_limits<Nanoseconds>::max();
  virtual Nanoseconds retry_at() const { return kNoRetry; }
  // Hands over the next chunk of the level and returns its credit; false when there is none.
  virtual bool poll_chunk(int level, LinkSink& sink) = 0;

  // Wakes the peer if it sleeps and waits for what was sent since the last call.
  virtual void notify() = 0;
  // Nobody polls from here on, until somebody is woken.
  virtual void before_sleep() {}

  // Whether this side may read the peer's memory directly (proven at connect).
  virtual bool can_pull() const = 0;
  // Copies `bytes` from address `from` in the peer to `to`. Only when can_pull().
  virtual Status pull(uint64_t from, std::byte* to, size_t bytes) = 0;

  // A buffer whose address the peer was told is no longer to be read. A reader compares the peer's
  // count before and after: if it moved, what was read is not to be trusted.
  virtual void revoke() = 0;
  virtual uint64_t revocations() const = 0;       // by this side
  virtual uint64_t peer_revocations() const = 0;  // by the peer, now

  // "shm", "ucx", ...
  virtual std::string transport() const = 0;
  // Whether the peer is a process of this host: asides reach it, and its devices are near.
  virtual bool within_host() const { return true; }
  // The peer process, for messages: "process 4242".
  virtual std::string peer_name() const = 0;

  // Any thread. What the peer sent before can still be polled. Whether it was not failed before.
  bool fail(const Status& why);
  // The same for a peer that lives but sends nonsense; it is told.
  void give_up(const Status& why);
  // How it is told. Before the link is used.
  void set_tell_peer(std::function<void(const std::string& why)> tell) {
    tell_peer_ = std::move(tell);
  }

  // Descriptors, with what they are, go beside the lanes, in order among themselves; at most
  // kAsideBytes and kAsideFds each. For any thread; waits while the peer has too many to take.
  static constexpr size_t kAsideBytes = 4096;
  static constexpr size_t kAsideFds = 4;
  Status send_aside(std::span<const std::byte> bytes, std::span<const int> fds);
  // Gets the peer's, on a thread of their own, which is not to be held up; those that came before
  // first.
  using AsideHandler = std::function<void(AsideMessage)>;
  void set_aside_handler(AsideHandler handler);
  void deliver_aside(AsideMessage message);
  // How they are sent. Before the link is used.
  using AsideSender = std::function<Status(std::span<const std::byte>, std::span<const int>)>;
  void set_aside_sender(AsideSender sender) { aside_sender_ = std::move(sender); }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Why; meaningful once failed().
  const Status& failure() const { return failure_; }

 private:
  std::atomic<bool> failing_{false};  // whoever sets it writes failure_
  std::atomic<bool> failed_{false};   // failure_ may be read
  Status failure_;
  std::function<void(const std::string&)> tell_peer_;
  AsideSender aside_sender_;
  std::mutex aside_mutex_;  // guards the two below; held while the handler runs
  AsideHandler aside_handler_;
  std::vector<AsideMessage> early_asides_;
};

}  // namespace freescale
