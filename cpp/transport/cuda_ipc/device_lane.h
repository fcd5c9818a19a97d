#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/priority.h"
#include "cpp/device/copy_queue.h"
#include "cpp/transport/cuda_ipc/access_probe.h"
#include "cpp/transport/cuda_ipc/aside_messages.h"
#include "cpp/transport/cuda_ipc/exported_memory.h"
#include "cpp/transport/cuda_ipc/flag_segment.h"
#include "cpp/transport/cuda_ipc/imported_memory.h"
#include "cpp/transport/cuda_ipc/staged_message.h"
#include "cpp/transport/cuda_ipc/staging_ring.h"
#include "cpp/transport/transport.h"

namespace freescale::cuda {

// A copy that waits for its turn with the driver's thread.
class Submission {
 public:
  virtual ~Submission() = default;
  // On the driver's thread, until it returns true: the copy is in its queue, or never will be.
  virtual bool try_submit() = 0;
  // For one that was abandoned; on the driver's thread, until it returns true: what is in the queue
  // waits for nothing any more.
  virtual bool try_close() = 0;
};

// Whose turn it is among those that go the other way does not matter to a submission: each side
// waits in its copies for the other's.
enum class Way { kOut, kIn };

// The way of a device's memory to the device of one peer process, or to itself: what each knows of
// the other, and a queue of copies for each level of priority.
class DeviceLane {
 public:
  using QueueMaker = std::function<Result<std::unique_ptr<CopyQueue>>(int level)>;

  // `link` is null for the way to itself. All arguments outlive the lane.
  DeviceLane(const PrimaryContext& context, const Uuid& device, const AccessTarget& target,
             ExportedMemory& exported, FlagSegment& flags, std::shared_ptr<Link> link,
             QueueMaker make_queue);
  // The work of its queues is over.
  ~DeviceLane();
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  const std::shared_ptr<Link>& link() const { return link_; }

  // For the threads of calls, which may wait for a moment here: makes sure that the peer knows how
  // to open what the pieces lie in.
  Status tell(const std::vector<ExportedPiece>& pieces);
  void tell_gone(std::span<const uint64_t> allocations);

  // Any thread.
  void submit(int level, Way way, std::shared_ptr<Submission> submission);
  // One that was submitted is abandoned.
  void close(std::shared_ptr<Submission> submission);
  // The peer is lost: nothing waits for it any more.
  void interrupt();

  // The rest is for the driver's thread.

  // What a peer tells beside the records is on its way when it names it in one.
  static constexpr std::chrono::seconds kPatience{10};

  // Waits for what the peer tells first.
  struct PeerSide {
    PeerFlags* flags = nullptr;
    bool same_device = false;
  };
  Result<PeerSide> peer(Deadline deadline);
  ImportedMemory& imported() { return imported_; }
  // Whether this device's copies reach the peer's memory, proven on first use. After peer().
  Result<bool> has_access(Deadline deadline);
  Result<CopyQueue*> queue(int level);
  // For messages that cannot be written to the peer's memory: the end of the level's ring that this
  // side fills, made on first use, and the first of a message's chunks in it.
  struct Staging {
    CopyQueue* queue = nullptr;
    StageEnd end;
  };
  Result<Staging> staging_out(int level);
  uint32_t take_chunks(int level, uint32_t chunks);
  // Whether the peer has told all that staging_in() waits for.
  bool was_told_ring(int level);
  // For the engine: whether it is the turn of the message from chunk `first` on to be told of. The
  // peer takes messages out of the ring in the order in which it hears of them.
  bool tells_next(int level, uint32_t first) const;
  void has_told(int level, uint32_t chunks);
  // The end that this side empties; waits for the peer's ring.
  Result<Staging> staging_in(int level, Deadline deadline);
  // One round: what waits is submitted as far as there is room, what was let go is handed over.
  // Whether there is something to come back for soon.
  Result<bool> work();
  // The same for a device that is lost: no copy is handed over.
  bool work_off();
  // Ends all waiting of the queues' streams.
  void abort();
  bool drained() const;

 private:
  // A ring, its words, and where its copies are queued.
  struct Ring {
    std::unique_ptr<StagingRing> memory;
    std::unique_ptr<CopyQueue> queue;  // of the end that empties; the other has the level's
    FlagWord filled;
    uint32_t next_chunk = 0;
    uint32_t next_to_tell = 0;  // the engine's
  };
  struct RingNotice {
    AsideRing message;
    UniqueFd fd;
  };
  void take_fresh_turns();
  Status take_words();
  Status say_hello();
  Status tell_piece(const ExportedPiece& piece);
  Status tell_ring(int level, const Ring& ring);
  Status await_peer(std::unique_lock<std::mutex>& lock, Deadline deadline,
                    const std::function<bool()>& told);
  void on_aside(AsideMessage message);
  std::vector<CopyQueue*> all_queues() const;
  Status take_aside(AsideMessage message);

  const PrimaryContext& context_;
  const Uuid device_;
  const AccessTarget& target_;
  ExportedMemory& exported_;
  FlagSegment& flags_;
  const std::shared_ptr<Link> link_;
  const QueueMaker make_queue_;

  std::mutex tell_mutex_;  // held while the peer is told: in order
  bool said_hello_ = false;
  std::unordered_set<uint64_t> told_;

  std::array<FlagWord, kPriorityLevels> emptied_;  // once hello was said

  ImportedMemory imported_;
  std::optional<bool> has_access_;
  std::array<Ring, kPriorityLevels> rings_out_;
  std::array<Ring, kPriorityLevels> rings_in_;
  std::array<std::unique_ptr<CopyQueue>, kPriorityLevels> queues_;
  struct Turns {
    std::array<std::deque<std::shared_ptr<Submission>>, kPriorityLevels> out;
    std::array<std::deque<std::shared_ptr<Submission>>, kPriorityLevels> in;
    std::vector<std::shared_ptr<Submission>> closing;
  };
  Turns turns_;
  std::unique_ptr<PeerFlags> peer_flags_;
  Status refusal_;  // of what the peer has sent once, and does not again

  std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  Turns fresh_turns_;
  std::optional<AsideHello> hello_;
  UniqueFd hello_fd_;
  std::array<std::optional<RingNotice>, kPriorityLevels> rings_told_;
  bool interrupted_ = false;
};

// Lanes that nobody uses at the moment. Those who have borrowed one keep the pool, which may
// outlive the lanes: to give one back touches nothing of it.
struct LanePool {
  std::mutex mutex;
  std::vector<DeviceLane*> free;
};

}  // namespace freescale::cuda
