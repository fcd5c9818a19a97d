#include "cpp/transport/cuda_ipc/send_transfer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cpp/transport/cuda_ipc/cuda_device.h"
#include "cpp/transport/cuda_ipc/receive_transfer.h"

namespace freescale::cuda {
SendTransfer::SendTransfer(CudaDevice& device, DeviceLane& lane, int level,
                           std::vector<SendPart> parts, WordValue ready, WordValue sent)
    : device_(device),
      lane_(lane),
      level_(level),
      parts_(std::move(parts)),
      ready_(ready),
      sent_(sent) {}

// ---- The driver's thread ------------------------------------------------------------------------

bool SendTransfer::try_submit() { return settle(take_turn()); }

bool SendTransfer::try_close() {
  // Before that it closes when its turn comes: chunks of a ring have an order.
  if (phase_.load() != Phase::kSubmitted) return true;
  return settle(close());
}

bool SendTransfer::settle(const Result<bool>& done) {
  if (done.ok()) return done.value();
  failure_ = done.status();
  enter(Phase::kFailed);
  return true;
}

// False if it needs another turn.
Result<bool> SendTransfer::take_turn() {
  const bool staged = phase_.load() == Phase::kStaged;
  if (abandoned_.load()) {
    if (staged || !requests_.empty()) return close();
    enter(Phase::kDropped);
    return true;
  }
  if (device_.failed()) return device_.failure();
  return staged ? submit_staged() : submit_direct();
}

void SendTransfer::enter(Phase phase) {
  phase_.store(phase);
  device_.notify();
}

Result<bool> SendTransfer::submit_direct() {
  Result<CopyQueue*> queue = lane_.queue(level_);
  if (!queue.ok()) return queue.status();
  if (!queue.value()->has_room()) return false;
  if (queue_ == nullptr) {
    Result<bool> prepared = prepare();
    if (!prepared.ok() || !prepared.value()) release_parts();
    if (!prepared.ok()) return prepared;
    if (!prepared.value()) return begin_staging();
    queue_ = queue.value();
  }
  while (submitted_pieces_ < whole_.pieces.size()) {
    if (!queue_->has_room()) return false;
    CopyRequest request = next_request();
    submitted_pieces_ += request.pieces.size();
    Result<uint32_t> last = queue_->submit(std::move(request));
    if (!last.ok()) {
      device_.heed(last.status());
      return last.status();
    }
    last_ = last.value();
    requests_.push_back(last_);
  }
  enter(Phase::kSubmitted);
  return abandoned_.load() ? close() : Result<bool>(true);
}

CopyRequest SendTransfer::next_request() const {
  CopyRequest request;
  const auto begin = whole_.pieces.begin() + static_cast<ptrdiff_t>(submitted_pieces_);
  const size_t left = whole_.pieces.size() - submitted_pieces_;
  const size_t count = std::min(left, CopyRequest::kPieces);
  request.pieces.assign(begin, begin + static_cast<ptrdiff_t>(count));
  request.within_device = whole_.within_device;
  request.ready = whole_.ready;
  if (count == left) request.done = whole_.done;
  return request;
}

Result<bool> SendTransfer::begin_staging() {
  Result<DeviceLane::Staging> staging = lane_.staging_out(level_);
  if (!staging.ok()) return staging.status();
  std::vector<Segment> memory;
  for (const SendPart& part : parts_) memory.push_back(part.from);
  queue_ = staging.value().queue;
  const uint32_t first = lane_.take_chunks(level_, StagedMessage::chunks_of(total_bytes(memory)));
  staged_ = std::make_unique<StagedMessage>(*queue_, staging.value().end, std::move(memory), first,
                                            ready_, sent_);
  enter(Phase::kStaged);
  return submit_staged();
}

Result<bool> SendTransfer::submit_staged() {
  Result<bool> all = staged_->submit();
  if (!all.ok()) device_.heed(all.status());
  if (!all.ok() || !all.value()) return all;
  enter(Phase::kSubmitted);
  return true;
}

// Nobody is interested any more in what was submitted.
Result<bool> SendTransfer::close() {
  if (staged_ == nullptr) {
    for (uint32_t last : requests_) queue_->abandon(last);
  } else {
    Result<bool> closed = staged_->close(lane_.link()->failed());
    if (!closed.ok() || !closed.value()) return closed;
    last_ = staged_->last();
  }
  enter(Phase::kClosed);
  return true;
}

Result<bool> SendTransfer::prepare() {
  whole_.ready.push_back(ready_);
  if (further_ready_.has_value()) whole_.ready.push_back(*further_ready_);
  whole_.within_device = !grant_.has_value() && !stages_;
  if (grant_.has_value()) {
    if (Status status = add_peer_words(); !status.ok()) return status;
  }
  // Last, so that nothing of this rank's is in use any more once it is written.
  whole_.done.push_back(sent_);
  return open_parts();
}

Status SendTransfer::add_peer_words() {
  Result<DeviceLane::PeerSide> peer = lane_.peer(Deadline::after(DeviceLane::kPatience));
  if (!peer.ok()) return peer.status();
  const PeerFlags& flags = *peer.value().flags;
  whole_.within_device = peer.value().same_device;
  peer_ready_ = WordValue{flags[grant_->ready_index], grant_->ready_value};
  whole_.ready.push_back(*peer_ready_);
  whole_.done.push_back({flags[grant_->arrived_index], grant_->arrived_value});
  return {};
}

Result<bool> SendTransfer::open_parts() {
  const Deadline deadline = Deadline::after(DeviceLane::kPatience);
  if (grant_.has_value()) {
    Result<bool> access = lane_.has_access(deadline);
    if (!access.ok() || !access.value()) return access;
  }
  for (const SendPart& part : parts_) {
    CopyPiece piece{part.to, address_of(part.from), part.from.bytes};
    if (part.to == 0) {
      Result<std::optional<DevicePtr>> opened = lane_.imported().acquire(part.piece, deadline);
      if (!opened.ok()) return opened.status();
      if (!opened.value().has_value()) return false;
      opened_.push_back(part.piece.allocation);
      piece.to = *opened.value();
    }
    whole_.pieces.push_back(piece);
  }
  return true;
}

void SendTransfer::release_parts() {
  for (uint64_t allocation : std::exchange(opened_, {})) lane_.imported().release(allocation);
}

// ---- The engine ---------------------------------------------------------------------------------

DeviceTransfer::State SendTransfer::state() {
  if (over_) return State::kOver;
  switch (phase_.load()) {
    case Phase::kQueued:
    case Phase::kStaged:
      return device_.failed() ? State::kFailed : State::kWaiting;
    case Phase::kDropped:
      over_ = true;
      break;
    case Phase::kClosed:
      over_ = queue_->is_over(last_) && !has_to_tell_staged();
      break;
    case Phase::kFailed:
      // What a failed submission has left in the stream is not known: its memory is kept.
      over_ = abandoned_.load() && queue_ == nullptr;
      if (!over_) return State::kFailed;
      break;
    case Phase::kSubmitted:
      // Once abandoned the word says nothing: it was written here.
      over_ = !abandoned_.load() && sent_.reached() && !has_to_tell_staged();
      break;
  }
  if (over_) {
    release_parts();
    return State::kOver;
  }
  if (device_.failed()) return State::kFailed;
  return peer_submitted_ || needs_no_peer_driver() ? State::kSubmitted : State::kWaiting;
}

// Whether all that the other rank's driver has to submit for this end has moved, or is nothing.
bool SendTransfer::needs_no_peer_driver() const {
  if (staged_ != nullptr) return staged_->fed();
  return !further_ready_.has_value() || further_ready_->reached();
}

// Otherwise nobody would take its chunks out of the ring.
bool SendTransfer::has_to_tell_staged() const { return staged_ != nullptr && !told_staged_; }

Status SendTransfer::failure() const {
  return phase_.load() == Phase::kFailed ? failure_ : device_.failure();
}

bool SendTransfer::needs_peer() {
  if (over_) return false;
  if (phase_.load() != Phase::kSubmitted) return true;
  if (staged_ != nullptr) return !staged_->fed();
  return peer_ready_.has_value() && !peer_ready_->reached();
}

bool SendTransfer::peer_has_come() {
  if (over_) return true;
  return phase_.load() == Phase::kSubmitted && (!peer_ready_.has_value() || peer_ready_->reached());
}

bool SendTransfer::take_news(std::vector<std::byte>* news) {
  const auto tell = [news](bool& told, const NewsOfCopy& what) {
    if (std::exchange(told, true)) return false;
    write_news(what, news);
    return true;
  };
  const Phase phase = phase_.load();
  const bool chunks_known =
      phase == Phase::kStaged || phase == Phase::kSubmitted || phase == Phase::kClosed;
  if (chunks_known && has_to_tell_staged()) {
    if (!lane_.tells_next(level_, staged_->first())) return false;
    lane_.has_told(level_, staged_->chunks());
    return tell(told_staged_, {News::kStaged, static_cast<uint32_t>(level_), staged_->first()});
  }
  if (abandoned_.load()) return over_ && tell(told_released_, {News::kReleased});
  return phase == Phase::kSubmitted && tell(told_submitted_, {News::kSubmitted});
}

Status SendTransfer::on_news(std::span<const std::byte> bytes) {
  const Result<NewsOfCopy> news = read_news(bytes);
  if (!news.ok()) return news.status();
  const bool awaits_any = told_staged_ || further_ready_.has_value();
  if (news.value().what != News::kSubmitted || !awaits_any) {
    return Status::invalid_argument("sent news of a copy that is not its own");
  }
  peer_submitted_ = true;
  return {};
}

void SendTransfer::abandon() {
  abandoned_.store(true);
  if (lane_.link() != nullptr && lane_.link()->failed()) lane_.interrupt();
  // What waits in a stream goes on at once: who holds the driver's lock until the device is idle
  // holds up the driver's thread, too.
  if (phase_.load() == Phase::kSubmitted && staged_ == nullptr) {
    static_cast<void>(settle(close()));
    return;
  }
  // By the driver's thread: it may be in the middle of submitting.
  device_.close(lane_, shared_from_this());
}

}  // namespace freescale::cuda
