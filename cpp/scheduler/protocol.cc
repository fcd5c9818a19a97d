#include "cpp/scheduler/protocol.h"

#include <algorithm>

namespace freescale {
namespace {

// Local copies up to this size are done while posting.
constexpr size_t kImmediateCopyBytes = 64 << 10;

}  // namespace

Peer* Protocol::peer_for(const std::shared_ptr<Link>& link) {
  auto [entry, fresh] = peer_by_link_.try_emplace(link.get(), nullptr);
  if (fresh) {
    auto peer = std::make_unique<Peer>(link);
    peer->sink = make_sink(*peer);
    link->set_chunk_sink(*peer->sink);
    entry->second = peer.get();
    peers_.push_back(std::move(peer));
  }
  return entry->second;
}

MatchKey Protocol::key_of(const Operation& operation) {
  const Request& request = operation.request;
  return {request.group->id(), request.sequence, request.part};
}

MatchKey Protocol::key_of(const WireHeader& header) {
  return {header.group, header.sequence, header.part};
}

void Protocol::add_group(const std::shared_ptr<const Group>& group) {
  forget_groups_that_are_over();
  GroupState& state = groups_[group->id()];
  state.group = group;
  state.rank = group->rank();
  for (int rank = 0; rank < group->size(); ++rank) {
    const bool self = rank == group->rank();
    state.members.push_back(self ? nullptr : peer_for(group->shared_link(rank)));
  }
  check_early(group->id());
}

// What came before this rank had joined the group could not be checked then.
void Protocol::check_early(uint64_t group) {
  for (const auto& peer : peers_) {
    const auto check = [&](const WireHeader& header) {
      if (header.group == group && !tells_its_rank(*peer, header)) {
        distrust(*peer, "sent a message of rank " + std::to_string(header.sender));
      }
    };
    for (const EarlyMessage& message : peer->early_point_to_point) check(message.header);
    for (const auto& [key, message] : peer->early_collective) check(message.header);
  }
}

// Of which nobody has anything left to say: this rank and all others have left or are lost.
void Protocol::forget_groups_that_are_over() {
  std::erase_if(groups_, [](const auto& entry) {
    const GroupState& state = entry.second;
    if (!state.closed || !state.group.expired()) return false;
    for (size_t rank = 0; rank < state.members.size(); ++rank) {
      const Peer* member = state.members[rank];
      if (member != nullptr && !member->link().failed() &&
          state.closed_by.count(static_cast<int>(rank)) == 0) {
        return false;
      }
    }
    return true;
  });
}

// ---- Posting -----------------------------------------------------------------------------------

void Protocol::post(std::unique_ptr<Operation> owned) {
  Operation& operation = *owned;
  operation.token = ++last_token_;
  operation.posted_after = looks_;
  Status status = unfold_plan(operation);
  if (status.ok()) {
    status = admission(operation);
  } else if (!operation.point_to_point()) {
    const Request& request = operation.request;
    reject(*request.group, request.sequence, operation.kind(), status.message());
  }
  operations_.emplace(operation.token, std::move(owned));
  if (!status.ok()) return fail(operation, std::move(status));
  if (!operation.point_to_point()) {
    collectives_.emplace(key_of(operation), &operation);
    GroupState& group = groups_[operation.request.group->id()];
    group.last_posted = std::max(group.last_posted, operation.request.sequence);
  }
  earliest_deadline_ = std::min(earliest_deadline_, operation.request.deadline);
  const uint64_t token = operation.token;
  // Each step may end the operation, by success or by a mismatch.
  if (operation.on_device() && !start_device_copies(operation)) return;
  start_sends(operation);
  start_local_copies(operation);
  match_early(operation);
  if (operations_.count(token) == 0) return;
  if (operation.pending == 0) return finish(operation, {});
  refuse_departed(operation);
  check_links();
}

// Ends an operation that awaits a message of a rank that has left the group: what came from it came
// before the notice.
void Protocol::refuse_departed(Operation& operation) {
  const GroupState& group = groups_[operation.request.group->id()];
  for (const Incoming& in : operation.incoming) {
    if (in.state != Incoming::State::kAwaited) continue;
    const int rank = departed(group, operation.request.group->size(), in.rank);
    if (rank == kNobody) continue;
    return fail(operation,
                Status::cancelled(operation.describe() + ": rank " + std::to_string(rank) +
                                  " left the group: " + group.closed_by.at(rank)));
  }
}

// A rank that left the group and so will not send what is `awaited` from it; from kAnySource only
// when all others have left.
int Protocol::departed(const GroupState& group, int size, int awaited) {
  if (awaited != kAnySource) return group.closed_by.count(awaited) != 0 ? awaited : kNobody;
  const bool all = size > 1 && group.closed_by.size() == static_cast<size_t>(size - 1);
  return all ? group.closed_by.rbegin()->first : kNobody;
}

// Whether the operation may start at all; resolves its peers.
Status Protocol::admission(Operation& operation) {
  resolve_peers(operation);
  // What a peer said before it was lost tells more than that it is lost.
  for (const Outgoing& out : operation.outgoing) {
    if (out.peer->link().failed()) drain(*out.peer);
  }
  GroupState& group = groups_[operation.request.group->id()];
  if (group.closed) {
    return Status::cancelled(operation.describe() + ": the group was closed on this rank");
  }
  if (!operation.point_to_point()) {
    Status status = admission_of_collective(group, operation);
    if (!status.ok()) return status;
  }
  for (const Outgoing& out : operation.outgoing) {
    if (!out.peer->link().failed() || group.closed_by.count(out.rank) != 0) continue;
    const Status& why = out.peer->link().failure();
    return Status(why.code(), operation.describe() + ": rank " + std::to_string(out.rank) +
                                  " is lost: " + why.message());
  }
  // Before those who left: they may have left because of it.
  if (!operation.point_to_point() && operation.request.sequence >= group.broken_from) {
    return Status::cancelled(operation.describe() + ": " + group.broken_by);
  }
  for (const Outgoing& out : operation.outgoing) {
    const auto left = group.closed_by.find(out.rank);
    if (left == group.closed_by.end()) continue;
    return Status::cancelled(operation.describe() + ": rank " + std::to_string(out.rank) +
                             " left the group: " + left->second);
  }
  return {};
}

Status Protocol::admission_of_collective(GroupState& group, Operation& operation) {
  const uint64_t sequence = operation.request.sequence;
  const auto refuse = [&](const std::string& why) {
    return Status::cancelled(operation.describe() + ": " + why);
  };
  // Its peers have been told already that it failed, and would not answer.
  if (group.failed.count(sequence) != 0) return refuse("another part of it failed before");
  if (const auto given_up = group.cancelled.find(sequence); given_up != group.cancelled.end()) {
    return refuse(given_up->second);
  }
  report_late_failure(group, operation);
  return {};
}

// A collective that went well here may have failed at a peer afterwards (this rank's message had
// gone with its header, and it awaited nothing more). The next one tells, once. It goes on all the
// same: failing it would fail it at peers that may be done with it, and so on for ever.
void Protocol::report_late_failure(GroupState& group, Operation& operation) {
  const auto late = group.cancelled.upper_bound(group.late_failure_reported);
  const uint64_t sequence = operation.request.sequence;
  if (late == group.cancelled.end() || late->first >= sequence || !operation.late.ok()) return;
  group.late_failure_reported = late->first;
  operation.late = Status::cancelled(
      operation.describe() + " went well, but the earlier collective #" +
      std::to_string(late->first) + " failed after it was done here: " + late->second);
}

// For a failure that becomes known when the next collective is under way already.
void Protocol::report_late_failure(uint64_t group_id) {
  Operation* next = nullptr;
  for (const auto& [key, operation] : collectives_) {
    if (key.group != group_id || !operation->late.ok()) continue;
    if (next == nullptr || operation->request.sequence < next->request.sequence) next = operation;
  }
  if (next != nullptr) report_late_failure(groups_[group_id], *next);
}

void Protocol::resolve_peers(Operation& operation) {
  const Group& group = *operation.request.group;
  for (Outgoing& out : operation.outgoing) out.peer = peer_for(group.shared_link(out.rank));
  for (Incoming& in : operation.incoming) {
    if (in.rank != kAnySource) in.peer = peer_for(group.shared_link(in.rank));
  }
  choose_copy_mode(operation);
}

// What every record about an operation says.
WireHeader Protocol::header_about(const Operation& operation) {
  const Request& request = operation.request;
  WireHeader header;
  header.op = static_cast<uint8_t>(operation.kind());
  header.priority = static_cast<int8_t>(request.priority);
  header.point_to_point = operation.point_to_point() ? 1 : 0;
  header.group = request.group->id();
  header.sequence = request.sequence;
  header.part = request.part;
  header.tag = request.tag;
  header.token = operation.token;
  header.sender = request.group->rank();
  return header;
}

WireHeader Protocol::header_for(const Outgoing& out) {
  Operation& operation = *out.operation;
  WireHeader header = header_about(operation);
  header.bytes = out.bytes;
  if (const Incoming* back = operation.incoming_from(out.peer)) header.bytes_back = back->bytes;
  header.layout = operation.request.plan.signature.layout;
  header.dtype = operation.request.plan.signature.dtype;
  return header;
}

void Protocol::start_sends(Operation& operation) {
  for (Outgoing& out : operation.outgoing) start_send(out);
}

void Protocol::start_send(Outgoing& out) {
  WireHeader header = header_for(out);
  Peer& peer = *out.peer;
  // A full lane would keep a copy here after the operation is over, and this rank may then do
  // nothing more to send it on.
  header.kind = RecordKind::kInline;
  const bool in_device = out.in_device();
  // What is staged is not there yet, but the peer should know that it comes.
  if (!in_device && !out.staged && peer.may_send_inline(out.bytes) &&
      peer.try_send(header, out.segments)) {
    peer.count_inline_sent();
    out.sent = out.bytes;
    out.state = Outgoing::State::kDone;
    out.operation->paths.add(Path::kInline);
    note_message(EventKind::kMessageOut, out);
    --out.operation->pending;
    return;
  }
  header.kind = in_device ? RecordKind::kAnnounceDevice : RecordKind::kAnnounce;
  if (out.segments.size() == 1 && !in_device && !out.staged) {
    header.address = reinterpret_cast<uint64_t>(out.segments[0].data);
    header.revocations = peer.link().revocations();
  }
  peer.send(header, {});
  out.state = Outgoing::State::kAnnounced;
}

void Protocol::start_local_copies(Operation& operation) {
  if (operation.on_device()) return;
  for (LocalCopy& copy : operation.local) {
    operation.paths.add(Path::kLocal);
    if (copy.bytes > kImmediateCopyBytes) {
      copying_.add(&copy, now_ns());
      continue;
    }
    copy_some(copy, copy.bytes);
    --operation.pending;
  }
}

void Protocol::match_early(Operation& operation) {
  const uint64_t token = operation.token;
  if (!operation.point_to_point() && refuse_unawaited(operation)) return;
  for (Incoming& in : operation.incoming) {
    match_early(in);
    if (operations_.count(token) == 0) return;
    if (in.state == Incoming::State::kAwaited && operation.point_to_point()) {
      awaiting_point_to_point_.push_back(&in);
    }
  }
}

// A message for this collective from a rank that, as this rank called it, sends none (another
// root).
bool Protocol::refuse_unawaited(Operation& operation) {
  const Group& group = *operation.request.group;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    Peer& peer = *peer_for(group.shared_link(rank));
    if (peer.early_collective.empty() || operation.incoming_from(&peer) != nullptr) continue;
    const auto found = peer.early_collective.find(key_of(operation));
    if (found == peer.early_collective.end()) continue;
    const WireHeader header = found->second.header;
    if (header.kind == RecordKind::kInline) peer.count_inline_taken();
    peer.early_collective.erase(found);
    refuse(operation, nullptr, peer, header);
    return true;
  }
  return false;
}

void Protocol::match_early(Incoming& in) {
  const Operation& operation = *in.operation;
  if (!operation.point_to_point()) {
    auto& early = in.peer->early_collective;
    if (early.empty()) return;
    const auto found = early.find(key_of(operation));
    if (found == early.end()) return;
    const EarlyMessage message = std::move(found->second);
    early.erase(found);
    return match(in, *in.peer, message.header, message.payload);
  }
  const Request& request = operation.request;
  // Without a source: the first in the order of ranks, then of arrival.
  for (int rank = 0; rank < request.group->size(); ++rank) {
    if (rank == request.group->rank() || (in.rank != kAnySource && in.rank != rank)) continue;
    Peer& peer = *peer_for(request.group->shared_link(rank));
    auto& early = peer.early_point_to_point;
    const auto found = std::find_if(early.begin(), early.end(), [&](const EarlyMessage& message) {
      return message.header.group == request.group->id() && message.header.tag == request.tag;
    });
    if (found == early.end()) continue;
    const EarlyMessage message = std::move(*found);
    early.erase(found);
    return match(in, peer, message.header, message.payload);
  }
}

// ---- For those who look on ---------------------------------------------------------------------

// A rank that the operation waits for has come to it. What the first look after posting finds came
// before this rank did.
void Protocol::hear_of_one(Operation& operation) const {
  if (--operation.unheard > 0 || looks_ - operation.posted_after <= 1) return;
  operation.ready = now_ns();
}

// The message is over. One that travels with its header takes no time of its own.
template <typename Part>
void Protocol::note_message(EventKind kind, const Part& part) const {
  if (!logs_.want(kind)) return;
  const Group& group = *part.operation->request.group;
  Event event;
  event.kind = kind;
  event.op = part.operation->kind();
  event.priority = priority_of_level(part.level);
  event.rank = group.global_rank(group.rank());
  event.peer = group.global_rank(part.rank);
  event.group = group.id();
  event.sequence = part.operation->request.sequence;
  event.bytes = part.bytes;
  event.end = now_ns();
  event.begin = part.begin == 0 ? event.end : part.begin;
  logs_.note(event);
}
template void Protocol::note_message(EventKind kind, const Outgoing& out) const;
template void Protocol::note_message(EventKind kind, const Incoming& in) const;

// ---- Ends --------------------------------------------------------------------------------------

void Protocol::one_done(Operation& operation) {
  if (--operation.pending == 0) finish(operation, {});
}

void Protocol::count_bytes(const Operation& operation) {
  const Group& group = *operation.request.group;
  moved_.clear();
  for (const Outgoing& out : operation.outgoing) {
    moved_.push_back({group.global_rank(out.rank), out.bytes, 0});
  }
  for (const Incoming& in : operation.incoming) {
    moved_.push_back({group.global_rank(in.rank), 0, in.bytes});
  }
  statistics_.count_bytes(operation.kind(), operation.request.priority, moved_);
}

void Protocol::finish(Operation& operation, Status status) {
  OpResult result;
  if (status.ok()) {
    count_bytes(operation);
    if (operation.kind() == OpKind::kRecv) result.source = operation.incoming[0].rank;
  }
  result.status = std::move(status);
  result.paths = operation.paths;
  result.ready = !result.status.ok() && operation.unheard > 0 ? now_ns() : operation.ready;
  result.late = std::move(operation.late);
  finished_.push_back({std::move(operation.request.on_done), std::move(result)});
  forget(operation);
}

void Protocol::fail(Operation& operation, Status status) {
  send_cancels(operation, status.message());
  const bool collective = !operation.point_to_point();
  const uint64_t group = operation.request.group->id();
  const uint64_t sequence = operation.request.sequence;
  if (collective && status.code() == StatusCode::kPeerLost) {
    report_loss(operation, status.message());
  }
  finish(operation, status);
  if (!collective) return;
  note_failed(group, sequence);
  fail_collective(group, sequence, status);
}

bool Protocol::GroupState::break_from(uint64_t sequence, std::string by) {
  if (sequence >= broken_from) return false;
  broken_from = sequence;
  broken_by = std::move(by);
  return true;
}

// The others may still reach the rank that is lost to this one, and be done with this rank's part
// of the collective: nothing else would end their next ones before the timeout.
void Protocol::report_loss(const Operation& operation, const std::string& why) {
  const Group& group = *operation.request.group;
  const uint64_t sequence = operation.request.sequence;
  if (!groups_[group.id()].break_from(sequence, "this rank has lost a member: " + why)) return;
  WireHeader header;
  header.kind = RecordKind::kMemberLost;
  header.sequence = sequence;
  tell_members(group, header, why);
}

void Protocol::note_failed(uint64_t group, uint64_t sequence) {
  GroupState& state = groups_[group];
  state.failed.insert(sequence);
  state.cancelled.erase(sequence);
  trim(state.failed);
  drop_early([&](const WireHeader& header) {
    return header.group == group && header.sequence == sequence && header.point_to_point == 0;
  });
}

// The other parts of a collective of which one part has failed.
void Protocol::fail_collective(uint64_t group, uint64_t sequence, const Status& status) {
  while (Operation* sibling = find_collective(group, sequence)) {
    send_cancels(*sibling, status.message());
    finish(*sibling, status);
  }
}

// A part of the collective that is in flight, or null.
Operation* Protocol::find_collective(uint64_t group, uint64_t sequence) const {
  const auto part = std::find_if(collectives_.begin(), collectives_.end(), [&](auto& entry) {
    return entry.first.group == group && entry.first.sequence == sequence;
  });
  return part == collectives_.end() ? nullptr : part->second;
}

// Ends the operation because this rank wants no more of it.
void Protocol::give_up(Operation& operation, const std::string& reason) {
  send_cancels(operation, reason);
  finish(operation, Status::cancelled(operation.describe() + ": " + reason));
}

// Tells every peer that still has to do with the operation.
void Protocol::send_cancels(Operation& operation, const std::string& reason) {
  std::set<Peer*> told;
  for (const Outgoing& out : operation.outgoing) {
    if (out.state == Outgoing::State::kDone || out.peer == nullptr) continue;
    if (told.insert(out.peer).second) send_cancel(*out.peer, operation, out.peer_token, reason);
  }
  for (const Incoming& in : operation.incoming) {
    if (in.state == Incoming::State::kDone || in.peer == nullptr) continue;
    // A receive that nobody answered yet is nobody's business.
    if (operation.point_to_point() && in.state == Incoming::State::kAwaited) continue;
    if (told.insert(in.peer).second) send_cancel(*in.peer, operation, in.peer_token, reason);
  }
}

void Protocol::send_cancel(Peer& peer, const Operation& operation, uint64_t peer_token,
                           const std::string& reason) {
  WireHeader header = header_about(operation);
  header.kind = RecordKind::kCancel;
  header.peer_token = peer_token;
  send_text(peer, header, reason);
}

void Protocol::send_text(Peer& peer, const WireHeader& header, const std::string& text) {
  constexpr size_t kMaxText = 2000;  // each hop adds to the reason; keep the record bounded
  std::string copy = text.substr(0, std::min(kMaxText, peer.max_payload()));
  const Segment body{reinterpret_cast<std::byte*>(copy.data()), copy.size()};
  peer.send(header, std::span(&body, 1));
}

void Protocol::tell_members(const Group& group, WireHeader header, const std::string& text) {
  header.group = group.id();
  header.sender = group.rank();
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank != group.rank()) send_text(*peer_for(group.shared_link(rank)), header, text);
  }
}

void Protocol::forget(Operation& operation) {
  lend_memory(operation);
  if (operation.on_device()) abandon_transfers(operation);
  const auto mine = [&](const auto* part) { return part->operation == &operation; };
  for (Outgoing& out : operation.outgoing) {
    if (out.state == Outgoing::State::kStreaming) out.peer->sending.remove_if(mine);
    // The peer may be reading the buffer right now; its user may write to it from here on.
    if (out.state == Outgoing::State::kAnnounced) out.peer->link().revoke();
  }
  for (Incoming& in : operation.incoming) {
    if (in.state == Incoming::State::kPulling) in.peer->pulling.remove_if(mine);
  }
  if (!operation.local.empty()) copying_.remove_if(mine);
  if (operation.point_to_point()) {
    std::erase_if(awaiting_point_to_point_, mine);
  } else if (const auto entry = collectives_.find(key_of(operation));
             entry != collectives_.end() && entry->second == &operation) {
    collectives_.erase(entry);
  }
  operations_.erase(operation.token);
}

void Protocol::reject(const Group& group, uint64_t sequence, OpKind op, const std::string& reason) {
  note_failed(group.id(), sequence);
  GroupState& state = groups_[group.id()];
  state.last_posted = std::max(state.last_posted, sequence);
  WireHeader header;
  header.kind = RecordKind::kCancel;
  header.op = static_cast<uint8_t>(op);
  header.sequence = sequence;
  tell_members(group, header, reason);
}

void Protocol::close_group(const Group& group, const std::string& reason) {
  GroupState& state = groups_[group.id()];
  if (std::exchange(state.closed, true)) return;
  std::vector<Operation*> open;
  for (auto& [token, operation] : operations_) {
    if (operation->request.group->id() == group.id()) open.push_back(operation.get());
  }
  for (Operation* operation : open) give_up(*operation, reason);
  drop_early([&](const WireHeader& early) { return early.group == group.id(); });
  WireHeader header;
  header.kind = RecordKind::kGroupClosed;
  tell_members(group, header, reason);
  notify_peers();
}

void Protocol::drop_early(const std::function<bool(const WireHeader&)>& unwanted) {
  for (const auto& peer : peers_) {
    const auto drop = [&](const EarlyMessage& message) {
      if (!unwanted(message.header)) return false;
      if (message.header.kind == RecordKind::kInline) peer->count_inline_taken();
      return true;
    };
    std::erase_if(peer->early_point_to_point, drop);
    std::erase_if(peer->early_collective, [&](const auto& entry) { return drop(entry.second); });
  }
}

void Protocol::close_all(const std::string& reason) {
  while (!operations_.empty()) give_up(*operations_.begin()->second, reason);
  notify_peers();
}

std::vector<OpenOperation> Protocol::open_operations() const {
  std::vector<OpenOperation> open;
  for (const auto& [token, operation] : operations_) {
    const Request& request = operation->request;
    open.push_back({request.group->id(), request.sequence, operation->describe_missing()});
  }
  return open;
}

void Protocol::check_deadlines(Nanoseconds now) {
  if (!earliest_deadline_.passed(now)) return;
  earliest_deadline_ = Deadline::never();
  std::vector<uint64_t> late;
  for (const auto& [token, operation] : operations_) {
    if (operation->request.deadline.passed(now)) {
      late.push_back(token);
    } else {
      earliest_deadline_ = std::min(earliest_deadline_, operation->request.deadline);
    }
  }
  for (uint64_t token : late) {
    const auto entry = operations_.find(token);
    if (entry == operations_.end()) continue;  // ended with its sibling
    Operation& operation = *entry->second;
    const auto limit =
        std::chrono::duration_cast<std::chrono::milliseconds>(operation.request.timeout);
    fail(operation, Status::timed_out(operation.describe() + " Timed out after " +
                                      std::to_string(limit.count()) + " ms waiting for " +
                                      operation.describe_missing()));
  }
}

// A link that failed may still hold what its peer sent before: operations end only when that is
// used up. A receive from anyone ends with the first member that is lost, as MPI's fault tolerance
// (ULFM) has it: the lost one may be the one that would have sent.
void Protocol::check_links() {
  for (const auto& peer : peers_) {
    if (!peer->link().failed()) continue;
    drain(*peer);
    // Nor is lost what was read before the peer closed its end, however late that is heard of.
    poll_leaving();
    const Status& why = peer->link().failure();
    fail_open(
        [&](const OpenMessage& message) {
          if (message.peer == peer.get()) return message.rank;
          if (message.rank != kAnySource) return kNobody;
          const int rank = rank_of(message.group, *peer);
          // Who left the group before is not lost to it.
          return groups_[message.group.id()].closed_by.count(rank) != 0 ? kNobody : rank;
        },
        why.code(), "is lost: " + why.message());
  }
}

// Whether a message comes to its end without its other rank.
bool Protocol::needs_nobody(const Outgoing& out) {
  if (out.state == Outgoing::State::kDone) return true;
  return !out.staged && out.transfer != nullptr && !out.transfer->needs_peer();
}

bool Protocol::needs_nobody(const Incoming& in) {
  if (in.state == Incoming::State::kDone) return true;
  if (in.staged) return in.landed == in.bytes;
  return in.transfer != nullptr && !in.transfer->needs_peer();
}

int Protocol::find_culprit(const Operation& operation, const Blame& blame) {
  const Group& group = *operation.request.group;
  for (const Outgoing& out : operation.outgoing) {
    if (needs_nobody(out)) continue;
    const bool granted =
        out.state == Outgoing::State::kStreaming || out.state == Outgoing::State::kLeaving;
    const int culprit = blame({group, out.peer, out.rank, granted});
    if (culprit != kNobody) return culprit;
  }
  for (const Incoming& in : operation.incoming) {
    if (needs_nobody(in)) continue;
    const bool granted = in.state != Incoming::State::kAwaited;
    const int culprit = blame({group, in.peer, in.rank, granted});
    if (culprit != kNobody) return culprit;
  }
  return kNobody;
}

// Ends the operations that wait for something that will not come; `reason` follows "rank 3 ".
void Protocol::fail_open(const Blame& blame, StatusCode code, const std::string& reason) {
  std::vector<std::pair<uint64_t, int>> doomed;
  for (const auto& [token, operation] : operations_) {
    const int rank = find_culprit(*operation, blame);
    if (rank != kNobody) doomed.emplace_back(token, rank);
  }
  for (const auto& [token, rank] : doomed) {
    const auto entry = operations_.find(token);
    if (entry == operations_.end()) continue;  // ended with its sibling
    Operation& operation = *entry->second;
    fail(operation,
         Status(code, operation.describe() + ": rank " + std::to_string(rank) + " " + reason));
  }
}

}  // namespace freescale
