// What a rank does with messages in device memory: their headers, matching and ends are those of
// all messages, but who moves the bytes is the DeviceCall.

#include <algorithm>

#include "cpp/scheduler/protocol.h"

namespace freescale {
namespace {

// A device writes words but wakes nobody, so it is looked at: this often while it has something of
// open operations to move, a fraction of the time that one chunk takes (4 MiB at 50 GB/s: 84 us),
// and less often for what is left of failed ones.
constexpr Nanoseconds kLookEvery = 20'000;
constexpr Nanoseconds kLookAtLeftoversEvery = 1'000'000;

}  // namespace

// False if it ended the operation.
bool Protocol::start_device_copies(Operation& operation) {
  device_operations_.push_back(operation.token);
  Status status = stage_far_messages(operation);
  for (LocalCopy& copy : operation.local) {
    if (!status.ok()) break;
    auto transfer = operation.request.device->copy(copy.level);
    status = transfer.status();
    if (status.ok()) copy.transfer = std::move(transfer.value());
  }
  if (status.ok()) return true;
  fail(operation, operation.failed_by(status));
  return false;
}

// A device reaches only those of its host.
Status Protocol::stage_far_messages(Operation& operation) {
  const auto is_far = [](const auto& message) {
    return message.bytes > 0 && message.peer != nullptr && !message.peer->link().within_host();
  };
  for (Incoming& in : operation.incoming) in.staged = is_far(in);
  for (Outgoing& out : operation.outgoing) {
    if (!is_far(out)) continue;
    out.staged = true;
    out.segments.clear();
    auto transfer = operation.request.device->stage_out(out.peer->link(), out.level, &out.segments);
    if (!transfer.ok()) return transfer.status();
    out.transfer = std::move(transfer.value());
  }
  return {};
}

// Not before the two ranks agree: what is submitted moves even if its message is given up.
Status Protocol::begin_stage_in(Incoming& in) {
  in.segments.clear();
  auto transfer = in.operation->request.device->stage_in(in.peer->link(), in.level, &in.segments);
  if (transfer.ok()) in.transfer = std::move(transfer.value());
  return transfer.status();
}

void Protocol::grant_device(Incoming& in) {
  Operation& operation = *in.operation;
  std::vector<std::byte> grant;
  auto transfer = operation.request.device->receive(in.peer->link(), &grant);
  Status status = transfer.status();
  if (status.ok() && grant.size() > in.peer->max_payload()) {
    status = Status::system("the memory for the " + std::to_string(in.bytes) + " bytes of rank " +
                            std::to_string(in.rank) +
                            " lies in too many allocations to be named in one record");
  }
  if (!status.ok()) {
    return fail(operation, operation.failed_by(status));
  }
  in.transfer = std::move(transfer.value());
  in.state = Incoming::State::kStreaming;
  WireHeader header = header_about(operation);
  header.kind = RecordKind::kGrant;
  header.peer_token = in.peer_token;
  const Segment body{grant.data(), grant.size()};
  in.peer->send(header, std::span(&body, 1));
}

void Protocol::start_device_send(Outgoing& out, std::span<const std::byte> grant) {
  auto transfer = out.operation->request.device->send(out.peer->link(), out.level, grant);
  if (transfer.ok()) {
    out.transfer = std::move(transfer.value());
  } else {
    distrust(*out.peer, "sent a grant that makes no sense: " + transfer.status().message());
  }
}

void Protocol::on_device_news(Peer& peer, const WireHeader& header,
                              std::span<const std::byte> news) {
  const bool incoming = header.kind == RecordKind::kDeviceNews;
  DeviceTransfer* const transfer = find_transfer(peer, header.peer_token, incoming);
  if (transfer == nullptr) return;  // its last byte was quicker
  if (Status status = transfer->on_news(news); !status.ok()) distrust(peer, status.message());
}

// Of an operation of this rank, in flight or failed; null if there is none.
DeviceTransfer* Protocol::find_transfer(const Peer& peer, uint64_t token, bool incoming) {
  if (const auto entry = operations_.find(token); entry != operations_.end()) {
    const Incoming* in = incoming ? entry->second->incoming_from(&peer) : nullptr;
    const Outgoing* out = incoming ? nullptr : entry->second->outgoing_to(&peer);
    if (in != nullptr) return in->transfer.get();
    return out != nullptr ? out->transfer.get() : nullptr;
  }
  for (const Leftover& leftover : leftovers_) {
    const Counterpart& other = leftover.other;
    if (other.peer == &peer && other.incoming == incoming && leftover.header.token == token) {
      return leftover.transfer.get();
    }
  }
  return nullptr;
}

bool Protocol::poll_devices() {
  device_retry_at_ = Link::kNoRetry;
  if (device_operations_.empty() && leftovers_.empty()) return false;
  const Nanoseconds now = now_ns();
  bool any = false;
  device_moves_ = false;
  polled_ = device_operations_;
  hear_of_arrived();
  for (uint64_t token : polled_) {
    const auto entry = operations_.find(token);
    if (entry != operations_.end()) any = poll_device_operation(*entry->second, now) || any;
  }
  any = poll_leftovers(now) || any;
  if (device_moves_) {
    device_retry_at_ = now + kLookEvery;
  } else if (!leftovers_.empty()) {
    device_retry_at_ = now + kLookAtLeftoversEvery;
  }
  return any;
}

// A sender that gives a message up says so, and then lets go of what the device has of it: that
// moves, whether or not its bytes were ready, and looks like the message. So what has arrived
// counts once all was heard that its sender had said by then.
void Protocol::hear_of_arrived() {
  std::map<Peer*, std::vector<std::pair<uint64_t, Incoming*>>> arrived;
  for (uint64_t token : polled_) {
    for (Incoming& in : operations_.at(token)->incoming) {
      if (in.transfer == nullptr || in.arrived || in.staged) continue;
      if (in.transfer->state() == DeviceTransfer::State::kOver) {
        arrived[in.peer].emplace_back(token, &in);
      }
    }
  }
  for (const auto& [peer, messages] : arrived) {
    if (!hear(*peer)) continue;
    for (const auto& [token, in] : messages) {
      if (operations_.count(token) != 0) in->arrived = true;
    }
  }
}

// Whether anything has changed. May end the operation.
bool Protocol::poll_device_operation(Operation& operation, Nanoseconds now) {
  operation.request.device->pace(now);
  look_for_devices(operation, now);
  DevicePoll poll;
  poll_staged(poll, operation);
  for (Outgoing& out : operation.outgoing) {
    if (!out.in_device() || out.state == Outgoing::State::kDone) continue;
    poll.over += poll_device_message(poll, operation, out.transfer,
                                     {out.peer, false, out.peer_token, out.rank});
    if (out.state == Outgoing::State::kStreaming && out.transfer == nullptr) {
      out.sent = out.bytes;
      out.state = Outgoing::State::kDone;
      note_message(EventKind::kMessageOut, out);
    }
  }
  for (Incoming& in : operation.incoming) {
    if (!in.in_device() || in.state == Incoming::State::kDone) continue;
    poll.over += poll_device_message(poll, operation, in.transfer,
                                     {in.peer, true, in.peer_token, in.rank}, in.arrived);
    if (in.state == Incoming::State::kStreaming && in.transfer == nullptr) {
      in.landed = in.bytes;
      in.state = Incoming::State::kDone;
      note_message(EventKind::kMessageIn, in);
    }
  }
  for (LocalCopy& copy : operation.local) {
    if (copy.copied == copy.bytes) continue;
    poll.over += poll_device_message(poll, operation, copy.transfer,
                                     {nullptr, false, 0, operation.request.group->rank()});
    if (copy.transfer == nullptr) copy.copied = copy.bytes;
  }
  operation.pending -= poll.over;
  if (!poll.failure.ok()) {
    fail(operation, std::move(poll.failure));
    return true;
  }
  const bool submitted = poll.waiting == 0 && !operation.submitted;
  if (submitted) note_submitted(operation);
  const bool changed = submitted || poll.over > 0 || poll.sent_on > 0;
  if (operation.pending == 0) finish(operation, {});
  return changed;
}

// As hear_of_one() is for hosts: the host of a rank may have called long before its stream comes to
// the call. What the first look finds at which all are known came before.
void Protocol::look_for_devices(Operation& operation, Nanoseconds now) {
  if (operation.devices_came) return;
  bool known = true;
  bool came = true;
  for (const Outgoing& out : operation.outgoing) {
    if (!out.in_device() || out.state == Outgoing::State::kDone) continue;
    known = known && out.transfer != nullptr &&
            out.transfer->state() != DeviceTransfer::State::kWaiting;
    came = came && known && out.transfer->peer_has_come();
  }
  if (came && operation.devices_awaited) operation.ready = now;
  operation.devices_came = came;
  operation.devices_awaited = operation.devices_awaited || known;
}

// Messages to and from other hosts, where they are between the device and the host's memory. A
// receiver is told when the sender's copies need no driver any more, as within a host: its stream
// will wait for them, and so might the sender's driver for the receiver's.
void Protocol::poll_staged(DevicePoll& poll, Operation& operation) {
  for (Outgoing& out : operation.outgoing) {
    if (!out.staged || out.transfer == nullptr) continue;
    const bool granted = out.state == Outgoing::State::kStreaming;
    const Counterpart receiver{granted ? out.peer : nullptr, false, out.peer_token, out.rank};
    if (!poll_device_message(poll, operation, out.transfer, receiver)) continue;
    ++poll.sent_on;
    if (granted) out.peer->sending.add(&out, now_ns());
  }
  for (Incoming& in : operation.incoming) {
    if (!in.staged || in.state == Incoming::State::kDone) continue;
    const Counterpart nobody{nullptr, true, 0, in.rank};
    if (!poll_device_message(poll, operation, in.transfer, nobody)) continue;
    in.state = Incoming::State::kDone;
    ++poll.over;
  }
}

// Looks at one message that is not done. Whether it is now, if it may be: then `transfer` is null.
bool Protocol::poll_device_message(DevicePoll& poll, Operation& operation,
                                   std::shared_ptr<DeviceTransfer>& transfer,
                                   const Counterpart& other, bool may_be_over) {
  if (transfer == nullptr) {  // not granted yet
    ++poll.waiting;
    return false;
  }
  device_moves_ = true;
  const DeviceTransfer::State state = transfer->state();
  relay_news(other, header_about(operation), *transfer);  // after: it may be the last look
  switch (state) {
    case DeviceTransfer::State::kWaiting:
      ++poll.waiting;
      return false;
    case DeviceTransfer::State::kSubmitted:
      return false;
    case DeviceTransfer::State::kOver:
      if (!may_be_over) return false;
      operation.paths.add(transfer->staged() ? Path::kStaged : Path::kCopyEngine);
      transfer.reset();
      return true;
    case DeviceTransfer::State::kFailed:
      ++poll.waiting;
      const Status why = transfer->failure();
      poll.failure = Status(why.code(), operation.describe() + ": with rank " +
                                            std::to_string(other.rank) + ": " + why.message());
      return false;
  }
  return false;
}

void Protocol::note_submitted(Operation& operation) {
  operation.submitted = true;
  if (!operation.request.on_submitted) return;
  finished_.push_back({[on_submitted = std::move(operation.request.on_submitted)](const OpResult&) {
                         on_submitted();
                       },
                       {}});
}

void Protocol::relay_news(const Counterpart& other, const WireHeader& about,
                          DeviceTransfer& transfer) {
  if (other.peer == nullptr) return;
  std::vector<std::byte> news;
  while (transfer.take_news(&news)) send_news(other, about, news);
}

void Protocol::send_news(const Counterpart& other, WireHeader about,
                         std::span<const std::byte> news) {
  about.kind = other.incoming ? RecordKind::kDeviceReply : RecordKind::kDeviceNews;
  about.peer_token = other.token;
  const Segment body{const_cast<std::byte*>(news.data()), news.size()};
  other.peer->send(about, std::span(&body, 1));
}

// A grant of a message that is staged. Its copies may be over, and then nobody looks at them.
void Protocol::start_staged_send(Outgoing& out) {
  if (out.transfer != nullptr) return;  // it goes on when it is out of the device
  send_news({out.peer, false, out.peer_token, out.rank}, header_about(*out.operation),
            DeviceCall::all_submitted());
  out.peer->sending.add(&out, out.begin);
}

// A grant for an operation that is over here: the receiver keeps its memory for what may come.
void Protocol::refuse_grant(Peer& peer, const WireHeader& grant) {
  const auto group = groups_.find(grant.group);
  if (group == groups_.end()) return;  // it knows that this rank has left
  WireHeader about = grant;
  about.token = 0;
  about.sender = group->second.rank;
  send_news({&peer, false, grant.token, grant.sender}, about, DeviceCall::nothing_comes());
}

// ---- Ends --------------------------------------------------------------------------------------

// The operation is over. What of it still moves keeps its memory until it is not touched any more.
void Protocol::abandon_transfers(Operation& operation) {
  std::erase(device_operations_, operation.token);
  const std::shared_ptr<DeviceCall> call = std::move(operation.request.device);
  const auto leave = [&](auto& part, const Counterpart& other) {
    if (part.transfer == nullptr) return;
    part.transfer->abandon();
    leftovers_.push_back({other, header_about(operation), std::move(part.transfer), call});
  };
  // Of a copy of what is staged the other rank knows nothing.
  const auto peer_of = [](const auto& part) { return part.staged ? nullptr : part.peer; };
  for (Outgoing& out : operation.outgoing) {
    leave(out, {peer_of(out), false, out.peer_token, out.rank});
  }
  for (Incoming& in : operation.incoming) leave(in, {peer_of(in), true, in.peer_token, in.rank});
  for (LocalCopy& copy : operation.local) leave(copy, {nullptr, false, 0, 0});
  // Last: from here on everything that the streams wait for looks as if it had come.
  if (operation.pending > 0) call->give_up();
  let_go_later(call);
}

// It is the user's, or a call that keeps what is: it is let go of without the lock.
void Protocol::let_go_later(std::shared_ptr<const void> memory) {
  finished_.push_back({[memory = std::move(memory)](const OpResult&) {}, {}});
}

void Protocol::keep_leftovers_for_ever() {
  if (!leftovers_.empty()) static_cast<void>(new std::vector(std::move(leftovers_)));
  if (!lent_.empty()) static_cast<void>(new std::vector(std::move(lent_)));
}

bool Protocol::poll_leftovers(Nanoseconds now) {
  bool any = false;
  for (Leftover& leftover : leftovers_) {
    leftover.call->pace(now);
    Peer* const peer = leftover.other.peer;
    if (peer != nullptr && peer->link().failed()) leftover.transfer->lose_peer();
    relay_news(leftover.other, leftover.header, *leftover.transfer);
    if (leftover.transfer->state() != DeviceTransfer::State::kOver) continue;
    relay_news(leftover.other, leftover.header, *leftover.transfer);
    leftover.transfer.reset();
    let_go_later(std::move(leftover.call));
    any = true;
  }
  std::erase_if(leftovers_, [](const Leftover& leftover) { return leftover.transfer == nullptr; });
  return any;
}

}  // namespace freescale
