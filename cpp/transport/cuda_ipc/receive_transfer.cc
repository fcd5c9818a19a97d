#include "cpp/transport/cuda_ipc/receive_transfer.h"

#include <cstring>

#include "cpp/transport/cuda_ipc/cuda_device.h"

namespace freescale {

std::vector<std::byte> DeviceCall::nothing_comes() {
  std::vector<std::byte> bytes;
  cuda::write_news({cuda::News::kReleased}, &bytes);
  return bytes;
}

std::vector<std::byte> DeviceCall::all_submitted() {
  std::vector<std::byte> bytes;
  cuda::write_news({cuda::News::kSubmitted}, &bytes);
  return bytes;
}

}  // namespace freescale

namespace freescale::cuda {
void write_news(const NewsOfCopy& news, std::vector<std::byte>* bytes) {
  const auto all = std::as_bytes(std::span(&news, 1));
  bytes->assign(all.begin(), all.end());
}

Result<NewsOfCopy> read_news(std::span<const std::byte> bytes) {
  NewsOfCopy news;
  if (bytes.size() != sizeof(news)) return Status::invalid_argument("sent broken news of a copy");
  std::memcpy(&news, bytes.data(), sizeof(news));
  return news;
}

// ---- The engine ---------------------------------------------------------------------------------

DeviceTransfer::State ReceiveTransfer::state() {
  if (over_) return State::kOver;
  const Phase phase = staged_ ? phase_.load() : Phase::kSubmitted;
  if (abandoned_.load()) {
    // The word says nothing any more: it was written here.
    const bool closed = phase == Phase::kClosed && queue_->is_over(message_->last());
    const bool never = phase == Phase::kFailed && queue_ == nullptr;
    // Of what comes through a ring, this rank's own copies alone touch its memory.
    over_ = staged_ ? closed || never : released_;
    return over_ ? State::kOver : State::kWaiting;
  }
  over_ = arrived_.reached();
  if (over_) return State::kOver;
  if (device_.failed() || phase == Phase::kFailed) return State::kFailed;
  return submitted_ && phase == Phase::kSubmitted ? State::kSubmitted : State::kWaiting;
}

Status ReceiveTransfer::failure() const {
  return staged_ && phase_.load() == Phase::kFailed ? failure_ : device_.failure();
}

bool ReceiveTransfer::needs_peer() {
  if (state() == State::kOver) return false;
  if (!staged_) return true;
  // It may all be in the ring; that shows once the driver's thread has looked.
  if (phase_.load() == Phase::kQueued) return !lane_.was_told_ring(static_cast<int>(level_));
  return phase_.load() != Phase::kSubmitted || !message_->fed();
}

bool ReceiveTransfer::take_news(std::vector<std::byte>* news) {
  const bool submitted = staged_ && !abandoned_.load() && phase_.load() == Phase::kSubmitted;
  if (!submitted || std::exchange(told_submitted_, true)) return false;
  write_news({News::kSubmitted}, news);
  return true;
}

Status ReceiveTransfer::on_news(std::span<const std::byte> bytes) {
  const Result<NewsOfCopy> parsed = read_news(bytes);
  if (!parsed.ok()) return parsed.status();
  const NewsOfCopy& news = parsed.value();
  if (news.what == News::kSubmitted) {
    submitted_ = true;
  } else if (news.what == News::kReleased) {
    released_ = true;
  } else if (news.what == News::kStaged && !staged_ && news.level < kPriorityLevels) {
    staged_ = true;
    level_ = news.level;
    first_ = news.first;
    device_.submit(lane_, static_cast<int>(level_), Way::kIn, shared_from_this());
  } else {
    return Status::invalid_argument("sent unknown news of a copy");
  }
  return {};
}

void ReceiveTransfer::abandon() {
  if (arrived_.reached()) over_ = true;
  abandoned_.store(true);
  if (staged_ && !over_) device_.close(lane_, shared_from_this());
}

void ReceiveTransfer::lose_peer() {
  released_ = true;
  lane_.interrupt();
}

// ---- The driver's thread ------------------------------------------------------------------------

bool ReceiveTransfer::try_submit() { return settle(take_turn()); }

bool ReceiveTransfer::try_close() {
  // Before that it closes when its turn comes: chunks of the ring have an order.
  if (phase_.load() != Phase::kSubmitted) return true;
  return settle(close());
}

bool ReceiveTransfer::settle(const Result<bool>& done) {
  if (done.ok()) return done.value();
  failure_ = done.status();
  enter(Phase::kFailed);
  return true;
}

void ReceiveTransfer::enter(Phase phase) {
  phase_.store(phase);
  device_.notify();
}

// False if it needs another turn.
Result<bool> ReceiveTransfer::take_turn() {
  if (device_.failed()) return device_.failure();
  if (message_ == nullptr) {
    if (Result<bool> prepared = prepare(); !prepared.ok()) return prepared;
  }
  if (abandoned_.load()) return close();
  Result<bool> all = message_->submit();
  if (!all.ok()) device_.heed(all.status());
  if (!all.ok() || !all.value()) return all;
  enter(Phase::kSubmitted);
  return true;
}

Result<bool> ReceiveTransfer::prepare() {
  Result<DeviceLane::Staging> staging =
      lane_.staging_in(static_cast<int>(level_), Deadline::after(DeviceLane::kPatience));
  if (!staging.ok()) return staging.status();
  queue_ = staging.value().queue;
  message_ = std::make_unique<StagedMessage>(*queue_, staging.value().end, memory_, first_, ready_,
                                             arrived_);
  return true;
}

Result<bool> ReceiveTransfer::close() {
  Result<bool> closed = message_->close(lane_.link()->failed());
  if (!closed.ok() || !closed.value()) return closed;
  enter(Phase::kClosed);
  return true;
}

}  // namespace freescale::cuda
