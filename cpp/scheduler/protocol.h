#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpp/scheduler/event_log.h"
#include "cpp/scheduler/level_queue.h"
#include "cpp/scheduler/operation.h"
#include "cpp/scheduler/peer.h"
#include "cpp/scheduler/statistics.h"

namespace freescale {

// What all operations have in common, once for every collective and transport: matching, header
// checks, grants, chunks by priority, deadlines, failure. Knows no threads: all calls come from the
// holder of the progress lock, and none blocks.
//
// A message goes like this: its header travels at once, with the payload when that is small
// (kInline), else alone (kAnnounce). When the receiver has posted the matching operation, it checks
// the header against its own and answers with a grant; only then do chunks flow. So a bulk message
// that a rank has not come to yet holds no slot and no credit.
class Protocol {
 public:
  Protocol(std::chrono::nanoseconds aging, Statistics& statistics)
      : aging_(aging.count()), statistics_(statistics) {}

  void add_group(const std::shared_ptr<const Group>& group);
  void post(std::unique_ptr<Operation> operation);
  // Tells the peers that collective `sequence` will not happen here.
  void reject(const Group& group, uint64_t sequence, OpKind op, const std::string& reason);
  void close_group(const Group& group, const std::string& reason);
  // Ends everything in flight.
  void close_all(const std::string& reason);
  // For when nobody looks any more: memory of failed operations that a device's copy may still
  // write to, or a link read, is never let go of.
  void keep_leftovers_for_ever();

  // Each returns whether it did anything.
  bool poll_records();
  // At most one chunk each way with each peer, of the most urgent level that has work.
  bool move_chunks();
  // Messages in device memory.
  bool poll_devices();
  void notify_peers();
  // Nobody polls from here on.
  void before_sleep();

  bool idle() const { return operations_.empty() && leftovers_.empty() && lent_.empty(); }
  bool has_operations() const { return !operations_.empty(); }
  // How many are remembered.
  size_t groups() const { return groups_.size(); }
  std::vector<OpenOperation> open_operations() const;
  Deadline earliest_deadline() const { return earliest_deadline_; }
  // When a chunk of the last move_chunks() that had to wait for its time may go, or devices are
  // looked at again.
  Deadline retry_at() const { return Deadline::at(std::min(retry_at_, device_retry_at_)); }
  // Ends what has timed out.
  void check_deadlines(Nanoseconds now);

  // Operations that are over; the caller runs their on_done without the lock.
  struct Finished {
    std::function<void(const OpResult&)> on_done;
    OpResult result;
  };
  std::vector<Finished> take_finished() { return std::exchange(finished_, {}); }
  bool has_finished() const { return !finished_.empty(); }

 private:
  friend class PeerSink;

  // What outlives the operations of a group.
  struct GroupState {
    std::weak_ptr<const Group> group;
    int rank = 0;                               // the own one
    std::vector<const Peer*> members;           // by rank; null: this rank
    bool closed = false;                        // by this rank
    std::map<int, std::string> closed_by;       // other rank → reason
    std::map<uint64_t, std::string> cancelled;  // collective → a peer's reason
    std::set<uint64_t> failed;                  // collectives that ended badly here
    uint64_t last_posted = 0;
    uint64_t late_failure_reported = 0;  // up to this collective
    // The first collective that cannot go well since a rank has lost a member, and who says so.
    uint64_t broken_from = std::numeric_limits<uint64_t>::max();
    std::string broken_by;
    // Whether that is news: it was not broken from there on before.
    bool break_from(uint64_t sequence, std::string by);
  };

  Peer* peer_for(const std::shared_ptr<Link>& link);
  std::unique_ptr<LinkSink> make_sink(Peer& peer);
  void check_early(uint64_t group);
  void forget_groups_that_are_over();
  static MatchKey key_of(const Operation& operation);
  static MatchKey key_of(const WireHeader& header);

  // Posting.
  Status admission(Operation& operation);
  Status admission_of_collective(GroupState& group, Operation& operation);
  static void report_late_failure(GroupState& group, Operation& operation);
  void report_late_failure(uint64_t group_id);
  void resolve_peers(Operation& operation);
  void start_sends(Operation& operation);
  void start_send(Outgoing& out);
  void start_local_copies(Operation& operation);
  void match_early(Operation& operation);
  void match_early(Incoming& in);
  bool refuse_unawaited(Operation& operation);
  void refuse_departed(Operation& operation);
  static WireHeader header_about(const Operation& operation);
  static WireHeader header_for(const Outgoing& out);

  // Records.
  static void distrust(const Peer& peer, const std::string& what);
  bool tells_its_rank(const Peer& peer, const WireHeader& header) const;
  void on_record(Peer& peer, std::span<const std::byte> record);
  void on_message(Peer& peer, const WireHeader& header, std::span<const std::byte> payload);
  void on_grant(Peer& peer, const WireHeader& header, std::span<const std::byte> payload);
  void on_pulled(Peer& peer, const WireHeader& header);
  void on_cancel(Peer& peer, const WireHeader& header, std::string reason);
  void on_member_lost(const WireHeader& header, const std::string& why);
  void on_group_closed(const WireHeader& header, std::string reason);
  void cancel_collective(const WireHeader& header, const std::string& reason);
  void cancel_point_to_point(Peer& peer, const WireHeader& header, const std::string& reason);
  void keep_early(Peer& peer, const WireHeader& header, std::span<const std::byte> payload);
  // Binds a message to the receive that awaited it; ends the operation if they do not agree.
  void match(Incoming& in, Peer& peer, const WireHeader& header,
             std::span<const std::byte> payload);
  // Ends an operation because of a message that disagrees with it; `in` may be null.
  void refuse(Operation& operation, Incoming* in, Peer& peer, const WireHeader& header);
  void note_stray(Peer& peer, const WireHeader& header);
  void grant(Incoming& in);
  void start_pull(Incoming& in, const WireHeader& header);
  static int rank_of(const Group& group, const Peer& peer);

  // Device memory.
  // What a look at the messages of one operation has found.
  struct DevicePoll {
    size_t over = 0;
    size_t waiting = 0;
    size_t sent_on = 0;  // from the host's memory
    Status failure;
  };
  // The other end of a message.
  struct Counterpart {
    Peer* peer;  // null for a copy on this rank
    bool incoming;
    uint64_t token;  // its operation there
    int rank;
  };
  bool start_device_copies(Operation& operation);
  static Status stage_far_messages(Operation& operation);
  static Status begin_stage_in(Incoming& in);
  void grant_device(Incoming& in);
  void start_device_send(Outgoing& out, std::span<const std::byte> grant);
  static void start_staged_send(Outgoing& out);
  void on_device_news(Peer& peer, const WireHeader& header, std::span<const std::byte> news);
  DeviceTransfer* find_transfer(const Peer& peer, uint64_t token, bool incoming);
  void hear_of_arrived();
  bool hear(Peer& peer);
  bool take_record(Peer& peer);
  bool poll_device_operation(Operation& operation, Nanoseconds now);
  void poll_staged(DevicePoll& poll, Operation& operation);
  bool poll_device_message(DevicePoll& poll, Operation& operation,
                           std::shared_ptr<DeviceTransfer>& transfer, const Counterpart& other,
                           bool may_be_over = true);
  void note_submitted(Operation& operation);
  static void relay_news(const Counterpart& other, const WireHeader& about,
                         DeviceTransfer& transfer);
  static void send_news(const Counterpart& other, WireHeader about,
                        std::span<const std::byte> news);
  void refuse_grant(Peer& peer, const WireHeader& grant);
  void abandon_transfers(Operation& operation);
  void let_go_later(std::shared_ptr<const void> memory);
  bool poll_leftovers(Nanoseconds now);

  // Chunks.
  void landed(Incoming& in, Path path);
  void put_whole(Outgoing& out);
  void gone(Outgoing& out, Path path);
  bool poll_leaving();
  void lend_memory(Operation& operation);
  void on_chunk(const Peer& peer, const ChunkTag& tag, std::span<const std::byte> data);
  void drain(Peer& peer);
  bool drain_chunk(Peer& peer, int level);
  bool move_level(int level);
  void relieve_starved(int level);
  bool put_next(Peer& peer, int level);
  bool pull_next(Peer& peer, int level);
  bool copy_next(int level);
  void copy_some(LocalCopy& copy, size_t bytes);
  static void raise(int& level, int8_t wish);
  template <typename T>
  static bool served(LevelQueue<T>& queue, int level, bool complete);

  // For those who look on.
  void hear_of_one(Operation& operation) const;
  static void look_for_devices(Operation& operation, Nanoseconds now);
  template <typename Part>
  void note_message(EventKind kind, const Part& part) const;

  // Ends.
  void one_done(Operation& operation);
  void count_bytes(const Operation& operation);
  void finish(Operation& operation, Status status);
  void fail(Operation& operation, Status status);
  void give_up(Operation& operation, const std::string& reason);
  Operation* find_collective(uint64_t group, uint64_t sequence) const;
  void fail_collective(uint64_t group, uint64_t sequence, const Status& status);
  void check_links();
  void send_cancels(Operation& operation, const std::string& reason);
  void send_cancel(Peer& peer, const Operation& operation, uint64_t peer_token,
                   const std::string& reason);
  void send_text(Peer& peer, const WireHeader& header, const std::string& text);
  void tell_members(const Group& group, WireHeader header, const std::string& text);
  void forget(Operation& operation);
  void note_failed(uint64_t group, uint64_t sequence);
  void report_loss(const Operation& operation, const std::string& why);
  void drop_early(const std::function<bool(const WireHeader&)>& unwanted);
  // One unfinished message of an operation, in one direction.
  struct OpenMessage {
    const Group& group;
    const Peer* peer;  // null for a receive from anyone
    int rank;          // kAnySource for that
    bool granted;      // chunks flow: what was sent before a rank left still counts
  };
  // The rank because of which a message will never be complete, or kNobody.
  using Blame = std::function<int(const OpenMessage&)>;
  static bool needs_nobody(const Outgoing& out);
  static bool needs_nobody(const Incoming& in);
  static constexpr int kNobody = -1;
  void fail_open(const Blame& blame, StatusCode code, const std::string& reason);
  static int find_culprit(const Operation& operation, const Blame& blame);
  static int departed(const GroupState& group, int size, int awaited);

  // How many ended collectives a group remembers, to tell late records from early ones.
  static constexpr size_t kRemembered = 256;
  template <typename Container>
  static void trim(Container& remembered) {
    while (remembered.size() > kRemembered) remembered.erase(remembered.begin());
  }

  // A device message of an operation that has failed, whose memory is not free yet.
  struct Leftover {
    Counterpart other;
    WireHeader header;  // about the operation
    std::shared_ptr<DeviceTransfer> transfer;
    std::shared_ptr<DeviceCall> call;
  };

  // Memory of an operation that has failed while a link read it.
  struct Lent {
    Link* link;
    uint64_t last_put;
    std::shared_ptr<const void> memory;
    std::shared_ptr<DeviceCall> call;  // whose memory it is; or null
  };

  const Nanoseconds aging_;
  Statistics& statistics_;
  EventLogs& logs_ = EventLogs::of_process();
  uint64_t looks_ = 0;  // at the records of peers
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unordered_map<const Link*, Peer*> peer_by_link_;
  std::unordered_map<uint64_t, std::unique_ptr<Operation>> operations_;  // by token
  std::unordered_map<MatchKey, Operation*, MatchKeyHash> collectives_;
  std::vector<Incoming*> awaiting_point_to_point_;  // in the order of posting
  std::unordered_map<uint64_t, GroupState> groups_;
  LevelQueue<LocalCopy> copying_;
  Nanoseconds copied_ = 0;                   // when copies last had a turn beside chunks
  Nanoseconds taken_[kPriorityLevels] = {};  // when chunks of the level were last taken from lanes
  std::vector<Finished> finished_;
  std::vector<Segment> pieces_;        // scratch of put_next
  std::vector<LinkStatistics> moved_;  // scratch of count_bytes
  Deadline earliest_deadline_ = Deadline::never();
  Nanoseconds retry_at_ = Link::kNoRetry;
  std::vector<uint64_t> device_operations_;  // tokens
  std::vector<Leftover> leftovers_;
  std::vector<Lent> lent_;
  std::vector<uint64_t> polled_;  // scratch of poll_devices
  bool device_moves_ = false;     // so the last look has found
  Nanoseconds device_retry_at_ = Link::kNoRetry;
  size_t next_to_send_ = 0;  // peer; may be one too far
  uint64_t last_token_ = 0;
};

}  // namespace freescale
