#include "cpp/transport/cuda_ipc/send_transfer.h"

#include <span>
#include <utility>

#include "cpp/transport/cuda_ipc/cuda_device.h"
#include "cpp/transport/cuda_ipc/receive_transfer.h"

namespace freescale::cuda {
namespace {

// What a peer tells beside the records is on its way when the grant comes.
constexpr std::chrono::seconds kPatienceWithPeer{10};

}  // namespace

SendTransfer::SendTransfer(CudaDevice& device, DeviceLane& lane, int level,
                           std::vector<SendPart> parts, WordValue ready, WordValue sent)
    : device_(device),
      lane_(lane),
      level_(level),
      parts_(std::move(parts)),
      ready_(ready),
      sent_(sent) {}

// ---- The driver's thread ------------------------------------------------------------------------

bool SendTransfer::try_submit() {
  Result<bool> done = take_turn();
  if (!done.ok()) fail(done.status());
  return !done.ok() || done.value();
}

// False if it needs another turn.
Result<bool> SendTransfer::take_turn() {
  switch (phase_.load()) {
    case Phase::kQueued:
      if (!abandoned_.load()) return submit_direct();
      enter(Phase::kDropped);
      return true;
    case Phase::kStaged:
      return abandoned_.load() ? close() : submit_staged();
    case Phase::kSubmitted:  // again, since it was abandoned
      return close();
    case Phase::kClosed:
    case Phase::kFailed:
    case Phase::kDropped:
      return true;
  }
  return true;
}

void SendTransfer::enter(Phase phase) {
  phase_.store(phase);
  device_.notify();
}

void SendTransfer::fail(Status why) {
  failure_ = std::move(why);
  enter(Phase::kFailed);
}

Result<bool> SendTransfer::submit_direct() {
  Result<CopyQueue*> queue = lane_.queue(level_);
  if (!queue.ok()) return queue.status();
  if (!queue.value()->has_room()) return false;
  Result<std::optional<CopyRequest>> request = make_request();
  if (!request.ok() || !request.value().has_value()) release_parts();
  if (!request.ok()) return request.status();
  if (!request.value().has_value()) return begin_staging();
  queue_ = queue.value();
  Result<uint32_t> last = queue_->submit(std::move(*request.value()));
  if (!last.ok()) return last.status();
  last_ = last.value();
  enter(Phase::kSubmitted);
  return true;
}

Result<bool> SendTransfer::begin_staging() {
  Result<DeviceLane::Staging> staging = lane_.staging_out(level_);
  if (!staging.ok()) return staging.status();
  std::vector<DeviceRange> memory;
  uint64_t bytes = 0;
  for (const SendPart& part : parts_) {
    memory.push_back({part.from, part.piece.bytes});
    bytes += part.piece.bytes;
  }
  queue_ = staging.value().queue;
  const uint32_t first = lane_.take_chunks(level_, StagedMessage::chunks_of(bytes));
  staged_ = std::make_unique<StagedMessage>(*queue_, staging.value().end, std::move(memory), first,
                                            ready_, sent_);
  enter(Phase::kStaged);
  return submit_staged();
}

Result<bool> SendTransfer::submit_staged() {
  Result<bool> all = staged_->submit();
  if (!all.ok() || !all.value()) return all;
  enter(Phase::kSubmitted);
  return true;
}

// Nobody is interested any more in what was submitted.
Result<bool> SendTransfer::close() {
  if (staged_ == nullptr) {
    queue_->abandon(last_);
  } else {
    Result<bool> closed = staged_->close();
    if (!closed.ok() || !closed.value()) return closed;
    last_ = staged_->last();
  }
  enter(Phase::kClosed);
  return true;
}

Result<std::optional<CopyRequest>> SendTransfer::make_request() {
  CopyRequest request;
  request.ready.push_back(ready_);
  request.within_device = !grant_.has_value();
  if (grant_.has_value()) {
    if (Status status = add_peer_words(request); !status.ok()) return status;
  }
  Result<bool> opened = open_parts(request);
  if (!opened.ok()) return opened.status();
  if (!opened.value()) return std::optional<CopyRequest>();
  // Last, so that nothing of this rank's is in use any more once it is written.
  request.done.push_back(sent_);
  return std::optional<CopyRequest>(std::move(request));
}

Status SendTransfer::add_peer_words(CopyRequest& request) {
  Result<DeviceLane::PeerSide> peer = lane_.peer(Deadline::after(kPatienceWithPeer));
  if (!peer.ok()) return peer.status();
  const PeerFlags& flags = *peer.value().flags;
  request.within_device = peer.value().same_device;
  request.ready.push_back({flags[grant_->ready_index], grant_->ready_value});
  request.done.push_back({flags[grant_->arrived_index], grant_->arrived_value});
  return {};
}

Result<bool> SendTransfer::open_parts(CopyRequest& request) {
  for (const SendPart& part : parts_) {
    CopyPiece piece{part.to, part.from, part.piece.bytes};
    if (part.to == 0) {
      Result<std::optional<DevicePtr>> opened =
          lane_.imported().acquire(part.piece, Deadline::after(kPatienceWithPeer));
      if (!opened.ok()) return opened.status();
      if (!opened.value().has_value()) return false;
      opened_.push_back(part.piece.allocation);
      piece.to = *opened.value();
    }
    request.pieces.push_back(piece);
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
      over_ = queue_->is_over(last_);
      break;
    case Phase::kFailed:
      // What a failed submission has left in the stream is not known: its memory is kept.
      over_ = abandoned_.load() && queue_ == nullptr;
      if (!over_) return State::kFailed;
      break;
    case Phase::kSubmitted:
      // Once abandoned the word says nothing: it was written here.
      over_ = !abandoned_.load() && sent_.reached();
      break;
  }
  if (over_) {
    release_parts();
    return State::kOver;
  }
  return device_.failed() ? State::kFailed : State::kSubmitted;
}

Status SendTransfer::failure() const {
  return phase_.load() == Phase::kFailed ? failure_ : device_.failure();
}

bool SendTransfer::needs_peer() {
  if (over_) return false;
  return phase_.load() != Phase::kSubmitted || (staged_ != nullptr && !staged_->fed());
}

bool SendTransfer::take_news(std::vector<std::byte>* news) {
  const auto tell = [news](bool& told, const NewsOfCopy& what) {
    if (std::exchange(told, true)) return false;
    const auto bytes = std::as_bytes(std::span(&what, 1));
    news->assign(bytes.begin(), bytes.end());
    return true;
  };
  const Phase phase = phase_.load();
  const bool chunks_known =
      phase == Phase::kStaged || phase == Phase::kSubmitted || phase == Phase::kClosed;
  if (chunks_known && staged_ != nullptr && !told_staged_) {
    return tell(told_staged_, {News::kStaged, static_cast<uint32_t>(level_), staged_->first()});
  }
  if (abandoned_.load()) return over_ && tell(told_released_, {News::kReleased});
  return phase == Phase::kSubmitted && tell(told_submitted_, {News::kSubmitted});
}

Status SendTransfer::on_news(std::span<const std::byte>) {
  return Status::invalid_argument("sent news of a copy that is not its own");
}

void SendTransfer::abandon() {
  abandoned_.store(true);
  if (lane_.link() != nullptr && lane_.link()->failed()) lane_.interrupt();
  // Closed by the driver's thread: it may be in the middle of submitting.
  device_.submit(lane_, level_, shared_from_this());
}

}  // namespace freescale::cuda
