#include "cpp/transport/cuda_ipc/device_lane.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace freescale::cuda {
namespace {

template <typename T>
std::span<const std::byte> bytes_of(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

template <typename T>
bool parse(const AsideMessage& message, T* parsed) {
  if (message.bytes.size() != sizeof(T)) return false;
  std::memcpy(parsed, message.bytes.data(), sizeof(T));
  return true;
}

}  // namespace

DeviceLane::DeviceLane(const PrimaryContext& context, const Uuid& device,
                       const AccessTarget& target, ExportedMemory& exported, FlagSegment& flags,
                       std::shared_ptr<Link> link, QueueMaker make_queue)
    : context_(context),
      device_(device),
      target_(target),
      exported_(exported),
      flags_(flags),
      link_(std::move(link)),
      make_queue_(std::move(make_queue)),
      imported_(context) {
  if (link_ == nullptr) return;
  link_->set_aside_handler([this](AsideMessage message) { on_aside(std::move(message)); });
}

DeviceLane::~DeviceLane() {
  if (link_ != nullptr) link_->set_aside_handler(nullptr);
}

// ---- What the two sides tell each other ---------------------------------------------------------

Status DeviceLane::take_words() {
  for (FlagWord& word : emptied_) {
    if (word.valid()) continue;
    Result<FlagWord> taken = flags_.take();
    if (!taken.ok()) return taken.status();
    word = std::move(taken.value());
  }
  return {};
}

Status DeviceLane::say_hello() {
  if (said_hello_) return {};
  if (Status status = take_words(); !status.ok()) return status;
  AsideHello hello;
  hello.device = device_;
  Result<std::vector<ExportedPiece>> target =
      exported_.export_range(target_.address(), AccessTarget::kBytes);
  if (!target.ok()) return target.status();
  hello.access_target = target.value()[0];
  hello.access_contents = target_.contents();
  for (size_t level = 0; level < emptied_.size(); ++level) {
    hello.emptied[level] = {emptied_[level].index(), emptied_[level].value() - 1};
  }
  const int fd = flags_.fd();
  if (Status status = link_->send_aside(bytes_of(hello), std::span(&fd, 1)); !status.ok()) {
    return status;
  }
  said_hello_ = true;
  return tell_piece(hello.access_target);
}

Status DeviceLane::tell(const std::vector<ExportedPiece>& pieces) {
  const std::lock_guard lock(tell_mutex_);
  if (Status status = say_hello(); !status.ok()) return status;
  for (const ExportedPiece& piece : pieces) {
    if (Status status = tell_piece(piece); !status.ok()) return status;
  }
  return {};
}

Status DeviceLane::tell_piece(const ExportedPiece& piece) {
  if (told_.count(piece.allocation) != 0) return {};
  UniqueFd descriptor;
  Result<AllocationNotice> notice = exported_.notice(piece.allocation, &descriptor);
  if (!notice.ok()) return notice.status();
  AsideNotice message;
  message.notice = notice.value();
  const int fd = descriptor.get();
  const std::span<const int> fds(&fd, descriptor.valid() ? 1 : 0);
  if (Status status = link_->send_aside(bytes_of(message), fds); !status.ok()) return status;
  told_.insert(piece.allocation);
  return {};
}

void DeviceLane::tell_gone(std::span<const uint64_t> allocations) {
  const std::lock_guard lock(tell_mutex_);
  for (uint64_t allocation : allocations) {
    if (told_.erase(allocation) == 0) continue;
    AsideGone message;
    message.allocation = allocation;
    // To a peer that is lost nothing needs to be told.
    static_cast<void>(link_->send_aside(bytes_of(message), {}));
  }
}

void DeviceLane::on_aside(AsideMessage message) {
  if (Status status = take_aside(std::move(message)); !status.ok()) {
    link_->give_up(Status::peer_lost(link_->peer_name() +
                                     " sent nonsense about its device: " + status.message()));
  }
}

Status DeviceLane::take_aside(AsideMessage message) {
  const Status nonsense =
      Status::invalid_argument("a message of " + std::to_string(message.bytes.size()) + " bytes");
  AsideKind kind{};
  if (message.bytes.size() < sizeof(kind)) return nonsense;
  std::memcpy(&kind, message.bytes.data(), sizeof(kind));
  AsideHello hello;
  AsideNotice notice;
  AsideGone gone;
  AsideRing ring;
  if (kind == AsideKind::kHello && parse(message, &hello) && message.fds.size() == 1) {
    for (const AsideWord& word : hello.emptied) {
      if (word.index >= FlagSegment::kWords) return nonsense;
    }
    const std::lock_guard lock(mutex_);
    if (hello_.has_value()) return Status::invalid_argument("two greetings");
    hello_ = hello;
    hello_fd_ = std::move(message.fds[0]);
    changed_.notify_all();
    return {};
  }
  if (kind == AsideKind::kNotice && parse(message, &notice) && message.fds.size() <= 1) {
    return imported_.add(notice.notice,
                         message.fds.empty() ? UniqueFd() : std::move(message.fds[0]));
  }
  if (kind == AsideKind::kGone && parse(message, &gone)) return imported_.remove(gone.allocation);
  if (kind == AsideKind::kRing && parse(message, &ring) && message.fds.size() == 1 &&
      ring.level < kPriorityLevels && ring.filled.index < FlagSegment::kWords) {
    const std::lock_guard lock(mutex_);
    if (rings_told_[ring.level].has_value()) return Status::invalid_argument("two rings");
    rings_told_[ring.level] = RingNotice{ring, std::move(message.fds[0])};
    changed_.notify_all();
    return {};
  }
  return nonsense;
}

void DeviceLane::interrupt() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(interrupted_, true)) return;
  }
  changed_.notify_all();
  imported_.interrupt();
}

Status DeviceLane::await_peer(std::unique_lock<std::mutex>& lock, Deadline deadline,
                              const std::function<bool()>& told) {
  while (!told()) {
    if (interrupted_) return Status::cancelled("the peer is lost");
    if (deadline.passed(now_ns())) {
      return Status::timed_out("Timed out waiting for what the peer tells of its device");
    }
    changed_.wait_for(lock,
                      std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::seconds(1)));
  }
  return {};
}

Result<DeviceLane::PeerSide> DeviceLane::peer(Deadline deadline) {
  std::unique_lock lock(mutex_);
  Status status = await_peer(lock, deadline, [this] { return hello_.has_value(); });
  if (!status.ok()) return status;
  if (!refusal_.ok()) return refusal_;
  const bool same_device = std::memcmp(&hello_->device, &device_, sizeof(Uuid)) == 0;
  if (peer_flags_ == nullptr) {
    UniqueFd fd = std::move(hello_fd_);
    lock.unlock();  // no call of the driver under it
    Result<std::unique_ptr<PeerFlags>> flags = PeerFlags::open(context_, std::move(fd));
    if (!flags.ok()) {
      refusal_ = flags.status();
      return refusal_;
    }
    peer_flags_ = std::move(flags.value());
  }
  return PeerSide{peer_flags_.get(), same_device};
}

Result<bool> DeviceLane::has_access(Deadline deadline) {
  if (has_access_.has_value()) return *has_access_;
  const ExportedPiece target = hello_->access_target;
  Result<std::optional<DevicePtr>> opened = imported_.acquire(target, deadline);
  if (!opened.ok()) return opened.status();
  bool proven = false;
  if (opened.value().has_value()) {
    // The place is the lane's own, as the word is that the peer gave it.
    Result<bool> reached = reaches(context_, *opened.value(), hello_->access_contents,
                                   hello_->emptied[0].index / kPriorityLevels);
    if (!reached.ok()) return reached.status();
    proven = reached.value();
    imported_.release(target.allocation);
  }
  has_access_ = proven;
  return proven;
}

// ---- Rings --------------------------------------------------------------------------------------

Result<DeviceLane::Staging> DeviceLane::staging_out(int level) {
  Ring& ring = rings_out_[static_cast<size_t>(level)];
  if (ring.memory == nullptr) {
    Result<FlagWord> filled = flags_.take();
    if (!filled.ok()) return filled.status();
    ring.filled = std::move(filled.value());
    Result<std::unique_ptr<StagingRing>> memory = StagingRing::create(context_);
    if (!memory.ok()) return memory.status();
    ring.memory = std::move(memory.value());
    if (Status status = tell_ring(level, ring); !status.ok()) return status;
  }
  Result<CopyQueue*> queue = this->queue(level);
  if (!queue.ok()) return queue.status();
  const AsideWord emptied = hello_->emptied[static_cast<size_t>(level)];  // peer() has seen it
  // A slot may be filled when the chunk before in it was emptied.
  const WordValue awaited{(*peer_flags_)[emptied.index], emptied.start + 1 - StagingRing::kSlots};
  return Staging{queue.value(), {ring.memory.get(), true, awaited, ring.filled.target()}};
}

Status DeviceLane::tell_ring(int level, const Ring& ring) {
  const std::lock_guard lock(tell_mutex_);
  // With the words in which it counts; who only sends has not said it before.
  if (Status status = say_hello(); !status.ok()) return status;
  AsideRing message;
  message.level = static_cast<uint32_t>(level);
  message.filled = {ring.filled.index(), ring.filled.value() - 1};
  const int fd = ring.memory->fd();
  return link_->send_aside(bytes_of(message), std::span(&fd, 1));
}

uint32_t DeviceLane::take_chunks(int level, uint32_t chunks) {
  return std::exchange(rings_out_[static_cast<size_t>(level)].next_chunk,
                       rings_out_[static_cast<size_t>(level)].next_chunk + chunks);
}

bool DeviceLane::was_told_ring(int level) {
  const std::lock_guard lock(mutex_);
  return hello_.has_value() && rings_told_[static_cast<size_t>(level)].has_value();
}

bool DeviceLane::tells_next(int level, uint32_t first) const {
  return rings_out_[static_cast<size_t>(level)].next_to_tell == first;
}

void DeviceLane::has_told(int level, uint32_t chunks) {
  rings_out_[static_cast<size_t>(level)].next_to_tell += chunks;
}

Result<DeviceLane::Staging> DeviceLane::staging_in(int level, Deadline deadline) {
  Result<PeerSide> peer = this->peer(deadline);
  if (!peer.ok()) return peer.status();
  const auto place = static_cast<size_t>(level);
  Ring& ring = rings_in_[place];
  AsideWord filled;
  UniqueFd fd;
  {
    std::unique_lock lock(mutex_);
    std::optional<RingNotice>& told = rings_told_[place];
    Status status = await_peer(lock, deadline, [&told] { return told.has_value(); });
    if (!status.ok()) return status;
    filled = told->message.filled;
    if (ring.memory == nullptr) fd = std::move(told->fd);
  }
  if (ring.memory == nullptr) {
    Result<std::unique_ptr<StagingRing>> memory = StagingRing::open(context_, std::move(fd));
    if (!memory.ok()) {
      refusal_ = memory.status();
      return refusal_;
    }
    Result<std::unique_ptr<CopyQueue>> queue = make_queue_(level);
    if (!queue.ok()) return queue.status();
    ring.memory = std::move(memory.value());
    ring.queue = std::move(queue.value());
  }
  const WordValue awaited{(*peer.value().flags)[filled.index], filled.start + 1};
  return Staging{ring.queue.get(), {ring.memory.get(), false, awaited, emptied_[place].target()}};
}

// ---- Copies -------------------------------------------------------------------------------------

void DeviceLane::submit(int level, Way way, std::shared_ptr<Submission> submission) {
  const std::lock_guard lock(mutex_);
  auto& turns = way == Way::kOut ? fresh_turns_.out : fresh_turns_.in;
  turns[static_cast<size_t>(level)].push_back(std::move(submission));
}

void DeviceLane::close(std::shared_ptr<Submission> submission) {
  const std::lock_guard lock(mutex_);
  fresh_turns_.closing.push_back(std::move(submission));
}

Result<CopyQueue*> DeviceLane::queue(int level) {
  std::unique_ptr<CopyQueue>& queue = queues_[static_cast<size_t>(level)];
  if (queue == nullptr) {
    Result<std::unique_ptr<CopyQueue>> made = make_queue_(level);
    if (!made.ok()) return made.status();
    queue = std::move(made.value());
  }
  return queue.get();
}

void DeviceLane::take_fresh_turns() {
  Turns fresh;
  {
    const std::lock_guard lock(mutex_);
    std::swap(fresh, fresh_turns_);
  }
  const auto append = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  for (size_t level = 0; level < kPriorityLevels; ++level) {
    append(fresh.out[level], turns_.out[level]);
    append(fresh.in[level], turns_.in[level]);
  }
  append(fresh.closing, turns_.closing);
}

bool DeviceLane::work_off() {
  take_fresh_turns();
  bool busy = false;
  // First, as others may wait for their room.
  std::erase_if(turns_.closing, [](const auto& submission) { return submission->try_close(); });
  for (auto* backlogs : {&turns_.out, &turns_.in}) {
    for (auto& backlog : *backlogs) {
      while (!backlog.empty() && backlog.front()->try_submit()) backlog.pop_front();
      busy = busy || !backlog.empty();
    }
  }
  return busy || !turns_.closing.empty();
}

Result<bool> DeviceLane::work() {
  bool busy = work_off();
  for (CopyQueue* queue : all_queues()) {
    Result<bool> driven = queue->drive();
    if (!driven.ok()) return driven.status();
    busy = busy || !queue->drained();
  }
  imported_.close_removed();
  return busy;
}

std::vector<CopyQueue*> DeviceLane::all_queues() const {
  std::vector<CopyQueue*> all;
  for (size_t level = 0; level < kPriorityLevels; ++level) {
    if (queues_[level] != nullptr) all.push_back(queues_[level].get());
    if (rings_in_[level].queue != nullptr) all.push_back(rings_in_[level].queue.get());
  }
  return all;
}

void DeviceLane::abort() {
  for (CopyQueue* queue : all_queues()) queue->abort();
}

bool DeviceLane::drained() const {
  const std::vector<CopyQueue*> all = all_queues();
  return std::all_of(all.begin(), all.end(), [](CopyQueue* queue) { return queue->drained(); });
}

}  // namespace freescale::cuda
