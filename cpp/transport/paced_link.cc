#include "cpp/transport/paced_link.h"

#include <utility>

namespace freescale {
namespace {

// Who has not asked for so long after he was to ask has nothing to send any more.
constexpr Nanoseconds kForgotten = 100'000'000;

}  // namespace

PacedLink::PacedLink(std::shared_ptr<Link> link, std::shared_ptr<EmulatedNic> nic)
    : link_(std::move(link)), nic_(std::move(nic)) {
  // What the link finds out about its peer is this link's failure.
  link_->set_tell_peer([this](const std::string&) { give_up(link_->failure()); });
}

bool PacedLink::try_send(std::span<const std::byte> head, std::span<const Segment> body) {
  if (!link_->try_send(head, body)) return false;
  nic_->interleave(head.size() + total_bytes(body));
  return true;
}

bool PacedLink::try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) {
  if (!can_put(level, total_bytes(pieces)) || !link_->try_put(level, tag, pieces)) return false;
  turns_[level].state = Turn::State::kIdle;
  return true;
}

// Where it was due, and not where the caller happened to wake: what he is late is made up for.
void PacedLink::goes_on(int level) {
  Turn& turn = turns_[level];
  turn.state = Turn::State::kWaiting;
  turn.since = turn.due;
  turn.again = nic_->now();
}

// Waits from now on, unless it does already.
void PacedLink::begin(Turn& turn, Nanoseconds now) {
  if (turn.state != Turn::State::kIdle && now - turn.again <= kForgotten) return;
  turn.since = now;
  turn.state = Turn::State::kWaiting;
}

bool PacedLink::refuse(Turn& turn, Nanoseconds again) {
  turn.again = again;
  retry_at_ = again;
  return false;
}

bool PacedLink::can_put(int level, size_t bytes) {
  Turn& turn = turns_[level];
  const Nanoseconds now = nic_->now();
  begin(turn, now);
  if (!link_->can_put(level, bytes)) {
    refuse(turn, now);
    retry_at_ = kNoRetry;
    return false;
  }
  if (turn.state == Turn::State::kWaiting) {
    if (now < nic_->free_at()) return refuse(turn, nic_->free_at());
    turn.due = nic_->transmit(bytes, turn.since);
    turn.bytes = bytes;
    turn.state = Turn::State::kOnWire;
  } else if (turn.bytes < bytes) {
    // Another message than the one whose chunk was sent: it pays the rest.
    turn.due = nic_->transmit(bytes - turn.bytes, now);
    turn.bytes = bytes;
  }
  if (nic_->now() < turn.due) return refuse(turn, turn.due);
  turn.again = now;
  return true;
}

Status PacedLink::pull(uint64_t, std::byte*, size_t) {
  return Status::system("a paced link reads nothing directly");
}

}  // namespace freescale
