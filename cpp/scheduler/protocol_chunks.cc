// In which order chunks move.

#include <algorithm>

#include "cpp/scheduler/protocol.h"

namespace freescale {
namespace {

// A step of a local copy; as long as a chunk between processes, so that an urgent operation waits
// for neither.
constexpr size_t kLocalStepBytes = 128 << 10;
// A step of reading a peer's memory. Each costs a system call and the pinning of its pages.
constexpr size_t kPullStepBytes = 256 << 10;

}  // namespace

bool Protocol::move_chunks() {
  retry_at_ = Link::kNoRetry;
  const bool left = poll_leaving();
  for (int level = 0; level < kPriorityLevels; ++level) {
    if (!move_level(level)) continue;
    relieve_starved(level);
    return true;
  }
  return left;
}

// While chunks of `level` move, nothing below it does, with any peer, and no local copy. What waits
// to be sent, read or copied climbs with time. What lies in a lane already cannot, and copies get
// only the gaps, so both have a turn now and then.
void Protocol::relieve_starved(int level) {
  const Nanoseconds now = now_ns();
  std::fill(taken_ + 0, taken_ + level + 1, now);
  for (const auto& peer : peers_) {
    peer->sending.age(level, now, aging_);
    peer->pulling.age(level, now, aging_);
  }
  copying_.age(level, now, aging_);
  if (now - copied_ >= aging_) {
    copied_ = now;
    for (int any = 0; any < kPriorityLevels && !copy_next(any); ++any) {
    }
  }
  for (int lower = level + 1; lower < kPriorityLevels; ++lower) {
    if (now - taken_[lower] < aging_) continue;
    taken_[lower] = now;
    for (size_t i = 0; i < peers_.size(); ++i) drain_chunk(*peers_[i], lower);
  }
}

// One chunk in and one out for each peer; the rank's own copies fill the gaps in which no peer has
// or takes anything. Who comes after the last peer that got a chunk comes first: where links share
// a wire that is free for one of them, all get as much.
bool Protocol::move_level(int level) {
  bool any = false;
  const size_t first = next_to_send_;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t place = (first + i) % peers_.size();
    Peer& peer = *peers_[place];
    if (put_next(peer, level)) {
      next_to_send_ = place + 1;
      any = true;
    }
    any = drain_chunk(peer, level) || any;
    any = pull_next(peer, level) || any;
  }
  return any || copy_next(level);
}

// A message is as urgent as the more urgent of its two ranks says. The wish came over the wire.
void Protocol::raise(int& level, int8_t wish) {
  if (is_priority(wish)) level = std::min(level, priority_level(static_cast<Priority>(wish)));
}

bool Protocol::put_next(Peer& peer, int level) {
  Outgoing* out = peer.sending.front(level);
  if (out == nullptr) return false;
  const size_t bytes = std::min(peer.link().chunk_bytes(), out->bytes - out->sent);
  if (!peer.link().can_put(level, bytes)) {
    retry_at_ = std::min(retry_at_, peer.link().retry_at());
    return false;
  }
  pieces_.clear();
  slice_segments(out->segments, out->sent, bytes, &pieces_);
  if (!peer.try_put(level, {out->peer_token, out->sent}, pieces_)) return false;
  out->sent += bytes;
  out->last_put = peer.link().put_count();
  const bool more = served(peer.sending, level, out->sent == out->bytes);
  if (peer.sending.front(level) != nullptr) peer.link().goes_on(level);
  // The receiver starts on this chunk while the next one is copied.
  peer.notify();
  if (!more) put_whole(*out);
  return true;
}

void Protocol::put_whole(Outgoing& out) {
  if (out.peer->link().has_read(out.last_put)) return gone(out, Path::kChunks);
  out.state = Outgoing::State::kLeaving;
  out.peer->leaving.push_back(&out);
}

// What links have read meanwhile. Whether there was any.
bool Protocol::poll_leaving() {
  bool any = false;
  for (const auto& peer : peers_) {
    while (!peer->leaving.empty() && peer->link().has_read(peer->leaving.front()->last_put)) {
      Outgoing& out = *peer->leaving.front();
      peer->leaving.pop_front();
      gone(out, Path::kChunks);
      any = true;
    }
  }
  if (lent_.empty()) return any;
  for (Lent& lent : lent_) {
    if (!lent.link->has_read(lent.last_put)) continue;
    lent.link = nullptr;
    let_go_later(std::move(lent.memory));
    let_go_later(std::move(lent.call));
  }
  return std::erase_if(lent_, [](const Lent& lent) { return lent.link == nullptr; }) > 0 || any;
}

// The operation ends. Its user may do what he likes with memory that a link still reads, for the
// peer drops what comes, but the memory has to be there.
void Protocol::lend_memory(Operation& operation) {
  std::shared_ptr<const void> memory;
  for (Outgoing& out : operation.outgoing) {
    if (out.state == Outgoing::State::kLeaving) std::erase(out.peer->leaving, &out);
    if (out.state == Outgoing::State::kDone || out.last_put == 0) continue;
    if (out.peer->link().has_read(out.last_put)) continue;
    if (memory == nullptr && operation.request.keep_memory) {
      memory = operation.request.keep_memory();
    }
    lent_.push_back({&out.peer->link(), out.last_put, memory, operation.request.device});
  }
}

// Notes that the front of the level had its turn and takes it out when it is complete. Returns
// whether it has more to move.
template <typename T>
bool Protocol::served(LevelQueue<T>& queue, int level, bool complete) {
  if (complete) queue.pop(level);
  queue.served(level, now_ns());
  return !complete;
}

bool Protocol::pull_next(Peer& peer, int level) {
  Incoming* in = peer.pulling.front(level);
  if (in == nullptr) return false;
  const size_t bytes = std::min(kPullStepBytes, in->bytes - in->landed);
  pieces_.clear();
  slice_segments(in->segments, in->landed, bytes, &pieces_);
  Status status;
  for (const Segment& piece : pieces_) {
    if (status.ok()) {
      status = peer.link().pull(in->pull_address + in->landed, piece.data, piece.bytes);
    }
    in->landed += piece.bytes;
  }
  const bool complete = in->landed == in->bytes;
  if (served(peer.pulling, level, complete || !status.ok())) return true;
  // The sender may have given up and reused its buffer meanwhile: then ask it to send, which it
  // will refuse, or not if the revocation was for another buffer.
  if (!status.ok() || peer.link().peer_revocations() != in->pull_revocations) {
    in->landed = 0;
    grant(*in);
    return true;
  }
  WireHeader header;
  header.kind = RecordKind::kPulled;
  header.peer_token = in->peer_token;
  peer.send(header, {});
  peer.paths.measured(Path::kPull, in->bytes, now_ns() - in->begin);
  landed(*in, Path::kPull);
  return true;
}

// The last byte of the message is in place.
void Protocol::landed(Incoming& in, Path path) {
  in.operation->paths.add(path);
  note_message(EventKind::kMessageIn, in);
  if (in.staged) {
    in.state = Incoming::State::kStreaming;
    in.operation->request.device->stage_in_may_go(in.peer->link());
    return;
  }
  in.state = Incoming::State::kDone;
  one_done(*in.operation);
}

// The message is out of its buffer.
void Protocol::gone(Outgoing& out, Path path) {
  out.state = Outgoing::State::kDone;
  out.operation->paths.add(path);
  note_message(EventKind::kMessageOut, out);
  one_done(*out.operation);
}

void Protocol::on_chunk(const Peer& peer, const ChunkTag& tag, std::span<const std::byte> data) {
  const auto entry = operations_.find(tag.token);
  if (entry == operations_.end()) return;  // given up here: drop it
  Operation& operation = *entry->second;
  Incoming* in = operation.incoming_from(&peer);
  if (in == nullptr || in->state != Incoming::State::kStreaming) return;
  if (in->in_device()) {
    return distrust(peer, "sent bytes of a message in device memory");
  }
  if (tag.offset > in->bytes || data.size() > in->bytes - std::max(tag.offset, in->landed)) {
    return distrust(peer, "sent more than its message holds");
  }
  scatter_bytes(in->segments, tag.offset, data, operation.copy_mode);
  in->landed += data.size();
  if (in->landed < in->bytes) return;
  in->peer->paths.measured(Path::kChunks, in->bytes, now_ns() - in->begin);
  landed(*in, Path::kChunks);
}

bool Protocol::copy_next(int level) {
  LocalCopy* copy = copying_.front(level);
  if (copy == nullptr) return false;
  copy_some(*copy, std::min(kLocalStepBytes, copy->bytes - copy->copied));
  if (served(copying_, level, copy->copied == copy->bytes)) return true;
  one_done(*copy->operation);
  return true;
}

void Protocol::copy_some(LocalCopy& copy, size_t bytes) {
  pieces_.clear();
  slice_segments(copy.from, copy.copied, bytes, &pieces_);
  for (const Segment& piece : pieces_) {
    scatter_bytes(copy.to, copy.copied, {piece.data, piece.bytes}, copy.operation->copy_mode);
    copy.copied += piece.bytes;
  }
}

void Protocol::notify_peers() {
  for (const auto& peer : peers_) peer->notify();
}

void Protocol::before_sleep() {
  for (const auto& peer : peers_) peer->link().before_sleep();
}

}  // namespace freescale
