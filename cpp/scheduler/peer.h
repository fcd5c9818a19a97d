#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpp/scheduler/level_queue.h"
#include "cpp/scheduler/operation.h"
#include "cpp/scheduler/path_chooser.h"
#include "cpp/scheduler/wire.h"
#include "cpp/transport/transport.h"

namespace freescale {

// Identifies one exchange of a collective on all ranks.
struct MatchKey {
  uint64_t group = 0;
  uint64_t sequence = 0;
  uint32_t part = 0;
  bool operator==(const MatchKey&) const = default;
};
struct MatchKeyHash {
  size_t operator()(const MatchKey& key) const {
    return key.group ^ (key.sequence * 0x9e3779b97f4a7c15u) ^ (key.part * 0xff51afd7ed558ccdu);
  }
};

// A message (inline or announced) that came before this rank posted the operation.
struct EarlyMessage {
  WireHeader header;
  std::vector<std::byte> payload;
};

// One other process, as the protocol sees it: its link and all that is in flight on it. Belongs to
// the holder of the progress lock.
class Peer {
 public:
  // Messages up to this size travel with their header.
  static constexpr size_t kInlineBytes = 8 << 10;
  // So many inline messages may wait at the receiver for their operation: at most 256 KiB of its
  // memory per peer. When they are spent, small messages are announced like large ones.
  static constexpr uint32_t kInlineCredits = 32;

  explicit Peer(std::shared_ptr<Link> link) : link_(std::move(link)) {}

  Link& link() const { return *link_; }

  // Sends the record if nothing waits before it and the lane takes it now.
  bool try_send(const WireHeader& header, std::span<const Segment> body);
  // Sends the record now or, when the lane is full, keeps a copy and sends it from flush(), in
  // order.
  void send(const WireHeader& header, std::span<const Segment> body);
  // Whether anything was sent.
  bool flush();
  // Wakes the peer if something was sent or put since the last call.
  void notify();
  bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces);

  // How much may follow a header in one record.
  size_t max_payload() const { return link_->max_record_bytes() - sizeof(WireHeader); }
  bool may_send_inline(size_t bytes) const {
    return bytes <= std::min(kInlineBytes, max_payload()) &&
           inline_sent_ - inline_confirmed_ < kInlineCredits && !link_->prefers_chunks();
  }
  void count_inline_sent() { ++inline_sent_; }
  void count_inline_taken() { ++inline_taken_; }
  void on_header(const WireHeader& header) { inline_confirmed_ = header.inline_taken; }

  std::unique_ptr<LinkSink> sink;  // what the link hands over goes there
  LevelQueue<Outgoing> sending;    // granted messages that have chunks left
  std::deque<Outgoing*> leaving;   // put, and still read by the link; in the order of last_put
  LevelQueue<Incoming> pulling;    // announced messages that this side reads
  PathChooser paths;               // how announced messages come in
  std::unordered_map<MatchKey, EarlyMessage, MatchKeyHash> early_collective;
  std::deque<EarlyMessage> early_point_to_point;  // in the order of arrival

 private:
  bool try_send_stamped(const WireHeader& stamped, std::span<const Segment> body);
  // With what every record tells: how many of the peer's inline messages were taken.
  WireHeader stamped(WireHeader header) const;

  const std::shared_ptr<Link> link_;
  std::deque<std::vector<std::byte>> outbox_;  // records that found the lane full
  bool dirty_ = false;                         // the peer was not notified yet
  uint32_t inline_sent_ = 0;                   // by this side
  uint32_t inline_confirmed_ = 0;              // of those, taken by the peer's operations
  uint32_t inline_taken_ = 0;                  // of the peer's, by ours
};

}  // namespace freescale
