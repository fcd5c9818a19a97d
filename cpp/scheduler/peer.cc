#include "cpp/scheduler/peer.h"

#include <cstring>

namespace freescale {

bool Peer::try_send(const WireHeader& header, std::span<const Segment> body) {
  WireHeader stamped = header;
  stamped.inline_taken = inline_taken_;
  if (!outbox_.empty() || !link_->try_send(std::as_bytes(std::span(&stamped, 1)), body)) {
    return false;
  }
  dirty_ = true;
  return true;
}

void Peer::send(const WireHeader& header, std::span<const Segment> body) {
  if (try_send(header, body)) return;
  WireHeader stamped = header;
  stamped.inline_taken = inline_taken_;
  const auto head = std::as_bytes(std::span(&stamped, 1));
  dirty_ = true;
  Unsent unsent;
  unsent.bytes.assign(head.begin(), head.end());
  for (const Segment& segment : body) {
    unsent.bytes.insert(unsent.bytes.end(), segment.data, segment.data + segment.bytes);
  }
  outbox_.push_back(std::move(unsent));
}

bool Peer::flush() {
  bool sent = false;
  while (!outbox_.empty() && link_->try_send(outbox_.front().bytes, {})) {
    outbox_.pop_front();
    sent = true;
  }
  dirty_ = dirty_ || sent;
  return sent;
}

void Peer::notify() {
  if (!dirty_) return;
  dirty_ = false;
  link_->notify();
}

bool Peer::try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) {
  if (!link_->try_put(level, tag, pieces)) return false;
  dirty_ = true;
  return true;
}

}  // namespace freescale
