#include "cpp/transport/transport.h"

namespace freescale {

bool Link::fail(const Status& why) {
  if (failing_.exchange(true, std::memory_order_acq_rel)) return false;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  return true;
}

void Link::give_up(const Status& why) {
  if (fail(why) && tell_peer_) tell_peer_(why.message());
}

Status Link::send_aside(std::span<const std::byte> bytes, std::span<const int> fds) {
  if (failed()) return failure();
  if (!aside_sender_) return Status::system("this link carries no descriptors");
  return aside_sender_(bytes, fds);
}

void Link::set_aside_handler(AsideHandler handler) {
  const std::lock_guard lock(aside_mutex_);
  aside_handler_ = std::move(handler);
  if (!aside_handler_) return;
  for (AsideMessage& early : std::exchange(early_asides_, {})) aside_handler_(std::move(early));
}

void Link::deliver_aside(AsideMessage message) {
  const std::lock_guard lock(aside_mutex_);
  if (aside_handler_) return aside_handler_(std::move(message));
  // A peer that says more than it has to before this side listens has nothing to gain by it.
  constexpr size_t kMostEarly = 4096;
  if (early_asides_.size() < kMostEarly) early_asides_.push_back(std::move(message));
}

}  // namespace freescale
