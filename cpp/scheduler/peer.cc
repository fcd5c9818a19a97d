#include "cpp/scheduler/peer.h"

namespace freescale {

WireHeader Peer::stamped(WireHeader header) const {
  header.inline_taken = inline_taken_;
  return header;
}

bool Peer::try_send_stamped(const WireHeader& stamped, std::span<const Segment> body) {
  if (!outbox_.empty() || !link_->try_send(std::as_bytes(std::span(&stamped, 1)), body)) {
    return false;
  }
  dirty_ = true;
  return true;
}

bool Peer::try_send(const WireHeader& header, std::span<const Segment> body) {
  return try_send_stamped(stamped(header), body);
}

void Peer::send(const WireHeader& header, std::span<const Segment> body) {
  const WireHeader record = stamped(header);
  if (try_send_stamped(record, body)) return;
  dirty_ = true;
  const auto head = std::as_bytes(std::span(&record, 1));
  std::vector<std::byte>& unsent = outbox_.emplace_back(head.begin(), head.end());
  for (const Segment& segment : body) {
    unsent.insert(unsent.end(), segment.data, segment.data + segment.bytes);
  }
}

bool Peer::flush() {
  bool sent = false;
  while (!outbox_.empty() && link_->try_send(outbox_.front(), {})) {
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
