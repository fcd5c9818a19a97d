#include "cpp/scheduler/operation.h"

#include <algorithm>

#include "cpp/scheduler/peer.h"

namespace freescale {
namespace {

Status check_peers(const Group& group, const std::vector<Message>& messages, bool receives) {
  std::vector<bool> seen(group.size(), false);
  for (const Message& message : messages) {
    if (receives && message.peer == kAnySource) continue;
    if (message.peer < 0 || message.peer >= group.size()) {
      return Status::invalid_argument("rank " + std::to_string(message.peer) +
                                      " is not in a group of " + std::to_string(group.size()));
    }
    if (seen[message.peer]) {
      return Status::invalid_argument("two messages for rank " + std::to_string(message.peer));
    }
    seen[message.peer] = true;
  }
  return {};
}

Message* find_peer(std::vector<Message>& messages, int peer) {
  const auto found = std::find_if(messages.begin(), messages.end(),
                                  [peer](const Message& m) { return m.peer == peer; });
  return found == messages.end() ? nullptr : &*found;
}

Status add_local_copy(Operation& operation, int self) {
  Message* from = find_peer(operation.request.plan.sends, self);
  Message* to = find_peer(operation.request.plan.receives, self);
  if (from == nullptr && to == nullptr) return {};
  if (to == nullptr)
    return Status::invalid_argument("this rank sends to itself and awaits nothing");
  if (from == nullptr) return Status::invalid_argument("this rank awaits what it does not send");
  const size_t out = from->bytes();
  const size_t in = to->bytes();
  if (out != in) {
    return Status::invalid_argument("this rank sends " + std::to_string(out) +
                                    " bytes to itself but expects " + std::to_string(in));
  }
  if (out == 0) return {};
  LocalCopy copy;
  copy.from = std::move(from->segments);
  copy.to = std::move(to->segments);
  copy.bytes = out;
  operation.local.push_back(std::move(copy));
  return {};
}

void add_messages(Operation& operation, int self) {
  for (Message& message : operation.request.plan.sends) {
    if (message.peer == self) continue;
    Outgoing out;
    out.rank = message.peer;
    out.bytes = message.bytes();
    out.segments = std::move(message.segments);
    operation.outgoing.push_back(std::move(out));
  }
  for (Message& message : operation.request.plan.receives) {
    if (message.peer == self) continue;
    Incoming in;
    in.rank = message.peer;
    in.bytes = message.bytes();
    in.segments = std::move(message.segments);
    operation.incoming.push_back(std::move(in));
  }
}

// Gives every part of the operation its way back and its place in the queues.
void link_parts(Operation& operation) {
  const int level = priority_level(operation.request.priority);
  const auto link = [&](auto& part) {
    part.operation = &operation;
    part.level = level;
    part.serial = operation.token;
  };
  for (Outgoing& out : operation.outgoing) link(out);
  for (Incoming& in : operation.incoming) link(in);
  for (LocalCopy& copy : operation.local) link(copy);
  operation.pending =
      operation.outgoing.size() + operation.incoming.size() + operation.local.size();
  // Who is awaited tells by its header that it has come; who only receives (from a send), by what
  // it does with the message.
  operation.unheard =
      operation.incoming.empty() ? operation.outgoing.size() : operation.incoming.size();
}

size_t total_moved(const Operation& operation) {
  size_t total = 0;
  for (const Incoming& in : operation.incoming) total += in.bytes;
  for (const LocalCopy& copy : operation.local) total += copy.bytes;
  return total;
}

}  // namespace

std::string Operation::describe() const {
  const Group& group = *request.group;
  std::string text = "rank " + std::to_string(group.rank()) + ": " + std::string(op_name(kind()));
  text += point_to_point() ? " with tag " + std::to_string(request.tag)
                           : " #" + std::to_string(request.sequence);
  return text + " of group '" + group.name() + "'";
}

Status Operation::failed_by(const Status& why) const {
  return Status(why.code(), describe() + ": " + why.message());
}

std::string Operation::describe_missing() const {
  std::string text;
  const auto add = [&text](int rank, const std::string& what) {
    text += (text.empty() ? "" : ", ") +
            (rank == kAnySource ? std::string("any rank") : "rank " + std::to_string(rank)) + " (" +
            what + ")";
  };
  const auto progress = [](size_t done, size_t all, const char* verb) {
    return std::to_string(done) + " of " + std::to_string(all) + " bytes " + verb;
  };
  for (const Incoming& in : incoming) {
    if (in.state == Incoming::State::kAwaited) {
      // Headers go out when an operation is called: without one the peer has not come to it.
      add(in.rank, point_to_point() ? "it has not sent" : "it has not called it");
    }
    if (in.state == Incoming::State::kStreaming || in.state == Incoming::State::kPulling) {
      add(in.rank, progress(in.landed, in.bytes, "arrived"));
    }
  }
  for (const Outgoing& out : outgoing) {
    if (out.state == Outgoing::State::kAnnounced) add(out.rank, "it has not received");
    if (out.state == Outgoing::State::kStreaming || out.state == Outgoing::State::kLeaving) {
      add(out.rank, progress(out.sent, out.bytes, "sent"));
    }
  }
  return text;
}

Outgoing* Operation::outgoing_to(const Peer* peer) {
  for (Outgoing& out : outgoing) {
    if (out.peer == peer) return &out;
  }
  return nullptr;
}

Incoming* Operation::incoming_from(const Peer* peer) {
  for (Incoming& in : incoming) {
    if (in.peer == peer) return &in;
  }
  return nullptr;
}

Status unfold_plan(Operation& operation) {
  const Group& group = *operation.request.group;
  const Plan& plan = operation.request.plan;
  for (const Status& status :
       {check_peers(group, plan.sends, false), check_peers(group, plan.receives, true),
        add_local_copy(operation, group.rank())}) {
    if (!status.ok()) return operation.failed_by(status);
  }
  add_messages(operation, group.rank());
  link_parts(operation);
  return {};
}

void choose_copy_mode(Operation& operation) {
  const bool over_network = std::any_of(
      operation.incoming.begin(), operation.incoming.end(),
      [](const Incoming& in) { return in.peer != nullptr && !in.peer->link().within_host(); });
  const bool streams = total_moved(operation) >= streaming_threshold(over_network);
  operation.copy_mode = streams ? CopyMode::kStreaming : CopyMode::kCached;
}

void scatter_bytes(const std::vector<Segment>& segments, size_t offset,
                   std::span<const std::byte> from, CopyMode mode) {
  for (const Segment& segment : segments) {
    if (from.empty()) return;
    if (offset >= segment.bytes) {
      offset -= segment.bytes;
      continue;
    }
    const size_t length = std::min(from.size(), segment.bytes - offset);
    copy_bytes(segment.data + offset, from.data(), length, mode);
    from = from.subspan(length);
    offset = 0;
  }
}

}  // namespace freescale
