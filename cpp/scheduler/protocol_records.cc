// What a rank does with the records that its peers send.

#include <algorithm>

#include "cpp/base/foreign.h"
#include "cpp/base/text.h"
#include "cpp/scheduler/layout.h"
#include "cpp/scheduler/protocol.h"

namespace freescale {
namespace {

std::string text_of(std::span<const std::byte> payload) {
  return readable({reinterpret_cast<const char*>(payload.data()), payload.size()});
}

std::string dtype_of(const WireHeader& header) {
  Signature signature;
  signature.dtype = header.dtype;
  return readable(signature.dtype_name());
}

std::string amount(uint64_t bytes, const std::string& dtype) {
  return std::to_string(bytes) + " bytes of " + (dtype.empty() ? "no dtype" : dtype);
}

// Why the message does not fit the receive, in two voices: as the receiver tells it of the sender,
// and as the sender should hear it. Empty when it fits.
struct Disagreement {
  std::string here;
  std::string there;
  bool found() const { return !here.empty(); }
};

Disagreement compare(const Operation& operation, const Incoming* in, const Peer* peer,
                     const WireHeader& header) {
  // Called for every message: nothing is put into words before something differs.
  const auto differ = [&](const std::string& theirs, const std::string& ours) {
    const std::string self = "rank " + std::to_string(operation.request.group->rank());
    const std::string other = "rank " + std::to_string(header.sender);
    return Disagreement{other + " " + theirs + ", but this rank " + ours,
                        "this rank " + theirs + ", but " + self + " " + ours};
  };
  const Signature& mine = operation.request.plan.signature;
  const bool point_to_point = operation.point_to_point();
  if (!point_to_point && header.op != static_cast<uint8_t>(mine.op)) {
    return differ("called " + std::string(op_name(static_cast<OpKind>(header.op))),
                  "called " + std::string(op_name(mine.op)));
  }
  if (!point_to_point && header.layout != mine.layout) {
    return differ("gave " + Layout::unpack(header.layout).describe(),
                  "gave " + Layout::unpack(mine.layout).describe());
  }
  if (in == nullptr) return differ("sent a message", "awaits none from it");
  if (header.bytes != in->bytes || header.dtype != mine.dtype) {
    return differ("sends " + amount(header.bytes, dtype_of(header)),
                  "expects " + amount(in->bytes, std::string(mine.dtype_name())));
  }
  const bool from_device = header.kind == RecordKind::kAnnounceDevice;
  if (header.bytes > 0 && from_device != in->in_device()) {
    const auto memory = [](bool device) { return device ? "CUDA memory" : "memory of the host"; };
    return differ(
        "sends " + amount(header.bytes, dtype_of(header)) + " from " + memory(from_device),
        std::string("expects them in ") + memory(in->in_device()));
  }
  if (point_to_point) return {};
  const Outgoing* out = const_cast<Operation&>(operation).outgoing_to(peer);
  const uint64_t back = out == nullptr ? kNothingBack : out->bytes;
  if (header.bytes_back == back) return {};
  const auto says = [](uint64_t bytes) {
    return bytes == kNothingBack ? std::string("no message") : std::to_string(bytes) + " bytes";
  };
  return differ("expects " + says(header.bytes_back), "sends " + says(back));
}

}  // namespace

// Takes what one peer's link hands over.
class PeerSink : public LinkSink {
 public:
  PeerSink(Protocol& protocol, Peer& peer) : protocol_(protocol), peer_(peer) {}
  void on_record(std::span<const std::byte> record) override { protocol_.on_record(peer_, record); }
  void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) override {
    protocol_.on_chunk(peer_, tag, data);
  }

 private:
  Protocol& protocol_;
  Peer& peer_;
};

std::unique_ptr<LinkSink> Protocol::make_sink(Peer& peer) {
  return std::make_unique<PeerSink>(*this, peer);
}

bool Protocol::poll_records() {
  // A bounded batch for each peer, so that a flood from one does not keep chunks waiting.
  constexpr int kBatch = 16;
  ++looks_;
  bool any = false;
  bool lost = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[i];
    any = peer.link().receive() || any;
    for (int n = 0; n < kBatch && peer.link().poll_record(*peer.sink); ++n) any = true;
    any = peer.flush() || any;
    lost = lost || (peer.link().failed() && !operations_.empty());
  }
  if (lost) check_links();
  return any;
}

// Takes everything that a link still holds.
void Protocol::drain(Peer& peer) {
  bool any = true;
  while (any) {
    any = false;
    while (take_record(peer)) any = true;
    for (int level = 0; level < kPriorityLevels; ++level) {
      while (peer.link().poll_chunk(level, *peer.sink)) any = true;
    }
  }
}

// Takes what the peer has said so far; false if it goes on and on.
bool Protocol::hear(Peer& peer) {
  constexpr int kMost = 1000;
  int heard = 0;
  while (heard < kMost && take_record(peer)) ++heard;
  return heard < kMost;
}

bool Protocol::take_record(Peer& peer) {
  peer.link().receive();
  return peer.link().poll_record(*peer.sink);
}

bool Protocol::drain_chunk(Peer& peer, int level) {
  return peer.link().poll_chunk(level, *peer.sink);
}

void Protocol::on_record(Peer& peer, std::span<const std::byte> record) {
  if (record.size() < sizeof(WireHeader)) return distrust(peer, "sent a short record");
  const auto header = copy_of_foreign<WireHeader>(record.data());
  if (header.magic != WireHeader::kMagic) return distrust(peer, "sent a broken header");
  if (!tells_its_rank(peer, header)) {
    return distrust(peer, "sent a record of rank " + std::to_string(header.sender));
  }
  peer.on_header(header);
  const auto payload = record.subspan(sizeof(header));
  switch (header.kind) {
    case RecordKind::kInline:
    case RecordKind::kAnnounce:
    case RecordKind::kAnnounceDevice:
      return on_message(peer, header, payload);
    case RecordKind::kGrant:
      return on_grant(peer, header, payload);
    case RecordKind::kDeviceNews:
    case RecordKind::kDeviceReply:
      return on_device_news(peer, header, payload);
    case RecordKind::kPulled:
      return on_pulled(peer, header);
    case RecordKind::kCancel:
      return on_cancel(peer, header, text_of(payload));
    case RecordKind::kGroupClosed:
      return on_group_closed(header, text_of(payload));
    case RecordKind::kMemberLost:
      return on_member_lost(header, text_of(payload));
  }
  distrust(peer, "sent an unknown record");
}

// Nothing that comes from a process that sends nonsense can be relied on.
void Protocol::distrust(const Peer& peer, const std::string& what) {
  peer.link().give_up(Status::peer_lost(peer.link().peer_name() + " " + what));
}

// Whether the record's sender is who it says; true for a group that this rank has not joined yet.
bool Protocol::tells_its_rank(const Peer& peer, const WireHeader& header) const {
  const auto group = groups_.find(header.group);
  if (group == groups_.end() || group->second.members.empty()) return true;
  const std::vector<const Peer*>& members = group->second.members;
  return header.sender >= 0 && static_cast<size_t>(header.sender) < members.size() &&
         members[header.sender] == &peer;
}

void Protocol::on_message(Peer& peer, const WireHeader& header,
                          std::span<const std::byte> payload) {
  if (header.kind == RecordKind::kInline && payload.size() != header.bytes) {
    return distrust(peer, "sent a cut message");
  }
  if (header.kind == RecordKind::kAnnounceDevice && header.bytes == 0) {
    return distrust(peer, "announced nothing in device memory");
  }
  if (header.point_to_point != 0) {
    for (Incoming* in : awaiting_point_to_point_) {
      const Request& request = in->operation->request;
      const bool fits = request.group->id() == header.group && request.tag == header.tag &&
                        (in->peer == &peer ||
                         (in->rank == kAnySource && rank_of(*request.group, peer) != kNobody));
      if (fits) return match(*in, peer, header, payload);
    }
    return keep_early(peer, header, payload);
  }
  const auto entry = collectives_.find(key_of(header));
  if (entry == collectives_.end()) return keep_early(peer, header, payload);
  Operation& operation = *entry->second;
  Incoming* in = operation.incoming_from(&peer);
  if (in != nullptr && in->state != Incoming::State::kAwaited) in = nullptr;
  if (in != nullptr) return match(*in, peer, header, payload);
  if (header.kind == RecordKind::kInline) peer.count_inline_taken();
  refuse(operation, nullptr, peer, header);
}

// Of the peer in the group, or kNobody.
int Protocol::rank_of(const Group& group, const Peer& peer) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.shared_link(rank).get() == &peer.link()) return rank;
  }
  return kNobody;
}

void Protocol::keep_early(Peer& peer, const WireHeader& header,
                          std::span<const std::byte> payload) {
  const auto group = groups_.find(header.group);
  const bool is_over = group != groups_.end() &&
                       (group->second.closed || (header.point_to_point == 0 &&
                                                 group->second.failed.count(header.sequence) != 0));
  if (is_over) {
    // The sender learned of the failure or the closing from the notice that went out then.
    if (header.kind == RecordKind::kInline) peer.count_inline_taken();
    return;
  }
  // Later parts of a collective may come before this rank gets to them; its first part cannot.
  if (header.point_to_point == 0 && header.part == 0 && group != groups_.end() &&
      header.sequence <= group->second.last_posted) {
    return note_stray(peer, header);
  }
  EarlyMessage message{header, {payload.begin(), payload.end()}};
  if (header.point_to_point != 0) {
    peer.early_point_to_point.push_back(std::move(message));
  } else {
    peer.early_collective.insert_or_assign(key_of(header), std::move(message));
  }
}

// A message for a collective that is over on this rank, which awaited none from the sender (they
// disagree about the root). Too late to fail it: the next one on the group will, on both ranks.
void Protocol::note_stray(Peer& peer, const WireHeader& header) {
  if (header.kind == RecordKind::kInline) peer.count_inline_taken();
  const std::string what =
      std::string(op_name(static_cast<OpKind>(header.op))) + " #" + std::to_string(header.sequence);
  GroupState& group = groups_[header.group];
  group.cancelled.emplace(header.sequence, "rank " + std::to_string(header.sender) +
                                               " sent a message in " + what +
                                               " that this rank did not await");
  trim(group.cancelled);
  WireHeader answer = header;
  answer.kind = RecordKind::kCancel;
  answer.token = 0;
  answer.peer_token = header.token;
  answer.sender = group.rank;
  send_text(peer, answer, "it awaited no message in " + what + " from this rank");
  report_late_failure(header.group);
}

// Binds a message to the receive that awaited it; ends the operation if the two do not agree.
void Protocol::match(Incoming& in, Peer& peer, const WireHeader& header,
                     std::span<const std::byte> payload) {
  Operation& operation = *in.operation;
  in.peer = &peer;
  in.rank = header.sender;
  in.peer_token = header.token;
  std::erase(awaiting_point_to_point_, &in);
  if (header.kind == RecordKind::kInline) peer.count_inline_taken();
  if (compare(operation, &in, &peer, header).found()) return refuse(operation, &in, peer, header);
  hear_of_one(operation);
  if (in.staged) {
    const Status status = begin_stage_in(in);
    if (!status.ok()) return fail(operation, operation.failed_by(status));
  }
  if (header.kind == RecordKind::kInline) {
    scatter_bytes(in.segments, 0, payload, CopyMode::kCached);
    in.landed = in.bytes;
    return landed(in, Path::kInline);
  }
  in.begin = now_ns();
  if (header.kind == RecordKind::kAnnounceDevice) {
    raise(in.level, header.priority);
    return grant_device(in);
  }
  const bool may_pull = header.address != 0 && peer.link().can_pull();
  const uint64_t number = operation.point_to_point() ? operation.token : operation.request.sequence;
  const bool explore = PathChooser::explores(number);
  if (may_pull && peer.paths.choose(in.bytes, explore) == Path::kPull)
    return start_pull(in, header);
  grant(in);
}

void Protocol::start_pull(Incoming& in, const WireHeader& header) {
  in.state = Incoming::State::kPulling;
  in.pull_address = header.address;
  in.pull_revocations = header.revocations;
  raise(in.level, header.priority);
  in.peer->pulling.add(&in, now_ns());
}

void Protocol::grant(Incoming& in) {
  WireHeader header = header_about(*in.operation);
  header.kind = RecordKind::kGrant;
  header.peer_token = in.peer_token;
  in.state = Incoming::State::kStreaming;
  in.peer->send(header, {});
}

void Protocol::refuse(Operation& operation, Incoming* in, Peer& peer, const WireHeader& header) {
  const Disagreement what = compare(operation, in, &peer, header);
  if (in != nullptr) in->state = Incoming::State::kDone;  // this peer gets its own text below
  send_cancel(peer, operation, header.token, what.there);
  fail(operation, Status::mismatch(operation.describe() + ": " + what.here));
}

void Protocol::on_grant(Peer& peer, const WireHeader& header, std::span<const std::byte> payload) {
  const auto entry = operations_.find(header.peer_token);
  Outgoing* out = entry == operations_.end() ? nullptr : entry->second->outgoing_to(&peer);
  if (out == nullptr || out->state != Outgoing::State::kAnnounced) {
    // Given up here; the peer was told then, but keeps its device memory for what may come.
    if (!payload.empty()) refuse_grant(peer, header);
    return;
  }
  out->state = Outgoing::State::kStreaming;
  out->begin = now_ns();
  if (out->operation->incoming.empty()) hear_of_one(*out->operation);
  out->peer_token = header.token;
  raise(out->level, header.priority);
  if (out->in_device()) return start_device_send(*out, payload);
  if (out->staged) return start_staged_send(*out);
  peer.sending.add(out, out->begin);
}

void Protocol::on_pulled(Peer& peer, const WireHeader& header) {
  const auto entry = operations_.find(header.peer_token);
  if (entry == operations_.end()) return;
  Outgoing* out = entry->second->outgoing_to(&peer);
  if (out == nullptr || out->state != Outgoing::State::kAnnounced) return;
  if (out->in_device()) {
    return distrust(peer, "read a message in device memory");
  }
  out->sent = out->bytes;
  if (out->operation->incoming.empty()) hear_of_one(*out->operation);
  gone(*out, Path::kPull);
}

void Protocol::on_cancel(Peer& peer, const WireHeader& header, std::string reason) {
  // What the peer says of processes of its own host does not name that.
  const std::string where = peer.link().within_host() ? "" : " (" + peer.link().peer_name() + ")";
  const std::string text =
      "rank " + std::to_string(header.sender) + where + " gave it up: " + reason;
  if (header.point_to_point != 0) {
    cancel_point_to_point(peer, header, text);
  } else {
    cancel_collective(header, text);
  }
}

void Protocol::cancel_collective(const WireHeader& header, const std::string& reason) {
  if (Operation* open = find_collective(header.group, header.sequence)) {
    return fail(*open, Status::cancelled(open->describe() + ": " + reason));
  }
  GroupState& group = groups_[header.group];
  if (group.failed.count(header.sequence) != 0) return;
  group.cancelled.emplace(header.sequence, reason);
  trim(group.cancelled);
  report_late_failure(header.group);
}

void Protocol::cancel_point_to_point(Peer& peer, const WireHeader& header,
                                     const std::string& reason) {
  const auto announced = [&](const EarlyMessage& message) {
    return message.header.token == header.token && message.header.kind != RecordKind::kInline;
  };
  if (std::erase_if(peer.early_point_to_point, announced) > 0) return;
  for (const auto& [token, operation] : operations_) {
    if (!operation->point_to_point()) continue;
    const Incoming* in = operation->incoming_from(&peer);
    const bool meant = token == header.peer_token ||
                       (in != nullptr && in->peer_token == header.token && header.token != 0);
    if (!meant) continue;
    return fail(*operation, Status::cancelled(operation->describe() + ": " + reason));
  }
}

void Protocol::on_member_lost(const WireHeader& header, const std::string& why) {
  GroupState& group = groups_[header.group];
  const std::string who = "rank " + std::to_string(header.sender);
  if (!group.break_from(header.sequence, who + " has lost a member: " + why)) return;
  const auto is_doomed = [&](const auto& entry) {
    return entry.first.group == header.group && entry.first.sequence >= header.sequence;
  };
  while (true) {  // each failure takes one, or several, away
    const auto found = std::find_if(collectives_.begin(), collectives_.end(), is_doomed);
    if (found == collectives_.end()) return;
    Operation& operation = *found->second;
    fail(operation, Status::cancelled(operation.describe() + ": " + group.broken_by));
  }
}

void Protocol::on_group_closed(const WireHeader& header, std::string reason) {
  GroupState& group = groups_[header.group];
  group.closed_by.emplace(header.sender, reason);
  if (group.closed) return;
  fail_open(
      [&](const OpenMessage& message) {
        const bool concerned = message.group.id() == header.group && !message.granted &&
                               (message.rank == header.sender || message.rank == kAnySource);
        return concerned ? departed(group, message.group.size(), message.rank) : kNobody;
      },
      StatusCode::kCancelled, "left the group: " + reason);
}

}  // namespace freescale
