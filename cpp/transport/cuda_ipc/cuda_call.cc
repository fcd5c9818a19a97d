#include "cpp/transport/cuda_ipc/cuda_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpp/transport/cuda_ipc/cuda_device.h"
#include "cpp/transport/cuda_ipc/receive_transfer.h"
#include "cpp/transport/cuda_ipc/send_transfer.h"

namespace freescale::cuda {
namespace {

const CallMemory::Message* own_message(const std::vector<CallMemory::Message>& messages) {
  const auto found = std::find_if(messages.begin(), messages.end(), [](const auto& message) {
    return message.peer == nullptr && total_bytes(message.segments) > 0;
  });
  return found == messages.end() ? nullptr : &*found;
}

// Whether it has bytes for, or from, a peer of this host or, else, of another one.
bool is_with_peer(const CallMemory::Message& message, bool within_host) {
  return message.peer != nullptr && message.peer->within_host() == within_host &&
         total_bytes(message.segments) > 0;
}

Status about(const CallMemory::Message& message, const Status& status) {
  return {status.code(), "with rank " + std::to_string(message.rank) + ": " + status.message()};
}

// Where the bytes of the message at `from` go, in pieces that are one at both ends.
template <typename Target, typename Place>
std::vector<SendPart> pair_up(const std::vector<Segment>& from, const std::vector<Target>& to,
                              Place place) {
  std::vector<SendPart> parts;
  size_t segment = 0, target = 0;
  uint64_t sent = 0, filled = 0;
  while (segment < from.size() && target < to.size()) {
    const uint64_t bytes =
        std::min<uint64_t>(from[segment].bytes - sent, to[target].bytes - filled);
    if (bytes > 0) {
      SendPart part = place(to[target], filled, bytes);
      part.from = {from[segment].data + sent, bytes};
      parts.push_back(part);
    }
    sent += bytes;
    filled += bytes;
    if (sent == from[segment].bytes) ++segment, sent = 0;
    if (filled == to[target].bytes) ++target, filled = 0;
  }
  return parts;
}

// A grant as it came over the wire.
struct ParsedGrant {
  DeviceGrant grant;
  std::vector<ExportedPiece> pieces;
};

Result<ParsedGrant> parse_grant(std::span<const std::byte> bytes, uint64_t expected) {
  ParsedGrant parsed;
  const auto nonsense = [](const std::string& what) {
    return Status::invalid_argument("its grant makes no sense: " + what);
  };
  if (bytes.size() < sizeof(DeviceGrant)) return nonsense("too short");
  std::memcpy(&parsed.grant, bytes.data(), sizeof(DeviceGrant));
  bytes = bytes.subspan(sizeof(DeviceGrant));
  if (parsed.grant.pieces != bytes.size() / sizeof(ExportedPiece) ||
      bytes.size() % sizeof(ExportedPiece) != 0) {
    return nonsense("another number of pieces than it says");
  }
  if (std::max(parsed.grant.ready_index, parsed.grant.arrived_index) >= FlagSegment::kWords) {
    return nonsense("a word outside of the segment");
  }
  parsed.pieces.resize(parsed.grant.pieces);
  std::memcpy(parsed.pieces.data(), bytes.data(), bytes.size());
  uint64_t total = 0;
  for (const ExportedPiece& piece : parsed.pieces) {
    if (piece.bytes > expected - total) return nonsense("more bytes than it awaits");
    total += piece.bytes;
  }
  if (total != expected) return nonsense("fewer bytes than it awaits");
  return parsed;
}

}  // namespace

Result<std::shared_ptr<CudaCall>> CudaCall::create(CudaDevice& device, CallMemory memory) {
  const std::shared_ptr<CudaCall> call(new CudaCall(device, std::move(memory.keep)));
  Result<FlagWord> ready = device.flags().take();
  if (!ready.ok()) return ready.status();
  call->ready_ = std::move(ready.value());
  for (const CallMemory::Message& message : memory.receives) {
    if (Status status = call->add_receive(message); !status.ok()) return about(message, status);
  }
  for (const CallMemory::Message& message : memory.sends) {
    if (Status status = call->add_send(message); !status.ok()) return about(message, status);
  }
  if (Status status = call->add_local(memory); !status.ok()) return status;
  if (Status status = call->add_far(memory); !status.ok()) return status;
  return call;
}

Status CudaCall::add_receive(const CallMemory::Message& message) {
  if (!is_with_peer(message, /*within_host=*/true)) return {};
  DeviceLane& lane = device_.lane(message.peer);
  Result<FlagWord> arrived = device_.flags().take();
  if (!arrived.ok()) return arrived.status();
  Receive receive{&lane, {}, message.segments, std::move(arrived.value())};
  for (const Segment& segment : message.segments) {
    auto pieces = device_.export_range(address_of(segment), segment.bytes);
    if (!pieces.ok()) return pieces.status();
    receive.pieces.insert(receive.pieces.end(), pieces.value().begin(), pieces.value().end());
  }
  if (Status status = lane.tell(receive.pieces); !status.ok()) return status;
  receives_.push_back(std::move(receive));
  return {};
}

Status CudaCall::add_send(const CallMemory::Message& message) {
  if (!is_with_peer(message, /*within_host=*/true)) return {};
  DeviceLane& lane = device_.lane(message.peer);
  Result<FlagWord> sent = device_.flags().take();
  if (!sent.ok()) return sent.status();
  sends_.push_back({&lane, message.segments, std::move(sent.value())});
  return {};
}

Status CudaCall::add_local(const CallMemory& memory) {
  const CallMemory::Message* from = own_message(memory.sends);
  const CallMemory::Message* to = own_message(memory.receives);
  if (from == nullptr || to == nullptr) return {};
  DeviceLane& lane = device_.lane(nullptr);
  Result<FlagWord> copied = device_.flags().take();
  if (!copied.ok()) return copied.status();
  local_ = Local{&lane, from->segments, to->segments, std::move(copied.value())};
  return {};
}

// The buffer is one for all, so that many small messages take little of it.
Status CudaCall::add_far(const CallMemory& memory) {
  size_t bytes = 0;
  for (const CallMemory::Message& message : memory.sends) {
    if (Status status = add_far(message, &far_sends_, &bytes); !status.ok()) return status;
  }
  for (const CallMemory::Message& message : memory.receives) {
    if (Status status = add_far(message, &far_receives_, &bytes); !status.ok()) return status;
  }
  if (bytes == 0) return {};
  for (Far& far : far_receives_) {
    Result<FlagWord> landed = device_.flags().take();
    if (!landed.ok()) return landed.status();
    far.landed = std::move(landed.value());
  }
  Result<HostBuffers::Block> buffer = device_.host_buffers().take(bytes);
  if (!buffer.ok()) return buffer.status();
  buffer_ = std::move(buffer.value());
  host_lanes_ = {device_.host_lanes(), &device_.borrow_host_lane(), &device_.borrow_host_lane()};
  return {};
}

Status CudaCall::add_far(const CallMemory::Message& message, std::vector<Far>* to, size_t* place) {
  constexpr size_t kAlignment = 256;  // of what copies engines move best
  if (!is_with_peer(message, /*within_host=*/false)) return {};
  Result<FlagWord> over = device_.flags().take();
  if (!over.ok()) return about(message, over.status());
  to->push_back({message.peer, message.segments, *place, std::move(over.value()), {}});
  *place += (to->back().bytes() + kAlignment - 1) / kAlignment * kAlignment;
  return {};
}

CudaCall::CudaCall(CudaDevice& device, std::shared_ptr<const void> keep)
    : device_(device), context_(device.context()), keep_(std::move(keep)) {}

CudaCall::~CudaCall() {
  // The stream may still write it.
  if (marked_ && !ready_.reached()) ready_.keep_for_ever();
  if (host_lanes_.pool == nullptr) return;
  const std::lock_guard lock(host_lanes_.pool->mutex);
  for (DeviceLane* lane : {host_lanes_.out, host_lanes_.in}) host_lanes_.pool->free.push_back(lane);
}

Status CudaCall::mark_ready(Stream stream) {
  if (receives_.empty() && sends_.empty() && !local_.has_value() && far_sends_.empty() &&
      far_receives_.empty()) {
    ready_.poison();  // nobody looks at it
    return {};
  }
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  const WordValue& ready = ready_.target();
  marked_ = true;
  return context_->driver().stream_write_value32(stream, ready.word.device, ready.value,
                                                 kWriteDefault);
}

// The words that are written when one of the call's messages is done with.
template <typename Function>
void CudaCall::for_each_end(Function function) const {
  for (const Receive& receive : receives_) function(receive.arrived);
  for (const Send& send : sends_) function(send.sent);
  if (local_.has_value()) function(local_->copied);
  for (const Far& far : far_sends_) function(far.over);
  for (const Far& far : far_receives_) function(far.over);
}

Status CudaCall::wait_on(Stream stream) const {
  std::vector<MemoryOperation> waits;
  for_each_end([&waits](const FlagWord& end) {
    MemoryOperation wait;
    wait.kind = MemoryOperationKind::kWaitValue32;
    wait.address = end.target().word.device;
    wait.value = end.value();
    wait.flags = kWaitGreaterOrEqual;
    waits.push_back(wait);
  });
  const CurrentContext current(*context_);
  if (!current.status().ok()) return current.status();
  constexpr size_t kBatch = kMemoryOperationLimit - 1;
  for (size_t i = 0; i < waits.size(); i += kBatch) {
    const auto count = static_cast<unsigned>(std::min(kBatch, waits.size() - i));
    Status status = context_->driver().stream_batch_mem_op(stream, count, waits.data() + i, 0);
    if (!status.ok()) return status;
  }
  return {};
}

Result<std::shared_ptr<DeviceTransfer>> CudaCall::receive(Link& from,
                                                          std::vector<std::byte>* grant) {
  const auto found = std::find_if(receives_.begin(), receives_.end(), [&](const Receive& receive) {
    return receive.lane->link().get() == &from;
  });
  if (found == receives_.end()) return Status::invalid_argument("a message that was not announced");
  const DeviceGrant head{ready_.index(), ready_.value(), found->arrived.index(),
                         found->arrived.value(), found->pieces.size()};
  const auto append = [grant](std::span<const std::byte> bytes) {
    grant->insert(grant->end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(&head, 1)));
  append(std::as_bytes(std::span(found->pieces)));
  return std::shared_ptr<DeviceTransfer>(std::make_shared<ReceiveTransfer>(
      device_, *found->lane, found->memory, ready_.target(), found->arrived.target()));
}

Result<std::shared_ptr<DeviceTransfer>> CudaCall::send(Link& to, int level,
                                                       std::span<const std::byte> grant) {
  const auto found = std::find_if(sends_.begin(), sends_.end(),
                                  [&](const Send& send) { return send.lane->link().get() == &to; });
  if (found == sends_.end()) return Status::invalid_argument("a grant for no message");
  Result<ParsedGrant> parsed = parse_grant(grant, total_bytes(found->segments));
  if (!parsed.ok()) return parsed.status();
  std::vector<SendPart> parts =
      pair_up(found->segments, parsed.value().pieces,
              [](const ExportedPiece& piece, uint64_t offset, uint64_t bytes) {
                return SendPart{{piece.allocation, piece.offset + offset, bytes}, 0, {}};
              });
  auto transfer = std::make_shared<SendTransfer>(device_, *found->lane, level, std::move(parts),
                                                 ready_.target(), found->sent.target());
  transfer->set_peer_words(parsed.value().grant);
  device_.submit(*found->lane, level, Way::kOut, transfer);
  return std::shared_ptr<DeviceTransfer>(std::move(transfer));
}

Result<std::shared_ptr<DeviceTransfer>> CudaCall::copy(int level) {
  if (!local_.has_value()) return Status::invalid_argument("a copy of nothing");
  auto transfer = copy_on_rank(*local_->lane, level, local_->from, local_->to, local_->copied);
  device_.submit(*local_->lane, level, Way::kOut, transfer);
  return std::shared_ptr<DeviceTransfer>(std::move(transfer));
}

std::shared_ptr<SendTransfer> CudaCall::copy_on_rank(DeviceLane& lane, int level,
                                                     const std::vector<Segment>& from,
                                                     const std::vector<Segment>& to,
                                                     const FlagWord& over) const {
  std::vector<SendPart> parts =
      pair_up(from, to, [](const Segment& piece, uint64_t offset, uint64_t bytes) {
        return SendPart{{0, 0, bytes}, address_of(piece) + offset, {}};
      });
  return std::make_shared<SendTransfer>(device_, lane, level, std::move(parts), ready_.target(),
                                        over.target());
}

Result<std::shared_ptr<DeviceTransfer>> CudaCall::stage(DeviceLane& lane, int level,
                                                        std::shared_ptr<SendTransfer> transfer,
                                                        std::optional<WordValue> landed) {
  transfer->set_stages(landed);
  device_.submit(lane, level, Way::kOut, transfer);
  return std::shared_ptr<DeviceTransfer>(std::move(transfer));
}

CudaCall::Far* CudaCall::find_far(std::vector<Far>& all, const Link& link) {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Far& far) { return far.link.get() == &link; });
  return found == all.end() ? nullptr : &*found;
}

// As the device knows it.
Segment CudaCall::in_buffer(const Far& far) const {
  return {reinterpret_cast<std::byte*>(buffer_.device() + far.place), far.bytes()};
}

Result<std::shared_ptr<DeviceTransfer>> CudaCall::stage_out(Link& to, int level,
                                                            std::vector<Segment>* memory) {
  Far* const far = find_far(far_sends_, to);
  if (far == nullptr) return Status::invalid_argument("a message that was not announced");
  memory->push_back({buffer_.host() + far->place, far->bytes()});
  DeviceLane& lane = *host_lanes_.out;
  return stage(lane, level, copy_on_rank(lane, level, far->segments, {in_buffer(*far)}, far->over),
               {});
}

Result<std::shared_ptr<DeviceTransfer>> CudaCall::stage_in(Link& from, int level,
                                                           std::vector<Segment>* memory) {
  Far* const far = find_far(far_receives_, from);
  if (far == nullptr) return Status::invalid_argument("a message that was not announced");
  memory->push_back({buffer_.host() + far->place, far->bytes()});
  DeviceLane& lane = *host_lanes_.in;
  return stage(lane, level, copy_on_rank(lane, level, {in_buffer(*far)}, far->segments, far->over),
               far->landed.target());
}

void CudaCall::stage_in_may_go(Link& from) {
  if (const Far* far = find_far(far_receives_, from)) far->landed.poison();
}

void CudaCall::pace(Nanoseconds now) { device_.pace(now); }

void CudaCall::give_up() {
  for_each_end([](const FlagWord& end) { end.poison(); });
  // Whoever was to write them may still do so.
  for (Receive& receive : receives_) receive.arrived.keep_for_ever();
  for (Send& send : sends_) send.sent.keep_for_ever();
  if (local_.has_value()) local_->copied.keep_for_ever();
  for (Far& far : far_sends_) far.over.keep_for_ever();
  for (Far& far : far_receives_) far.over.keep_for_ever();
}

}  // namespace freescale::cuda
