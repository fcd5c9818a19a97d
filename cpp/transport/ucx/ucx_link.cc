#include "cpp/transport/ucx/ucx_link.h"

#include <algorithm>
#include <utility>

#include "cpp/base/text.h"

namespace freescale::ucx {
namespace {

std::span<const std::byte> bytes_of(const MessageHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

Segment segment_of(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

UcxLink::UcxLink(std::shared_ptr<Worker> worker, uint64_t key, std::string peer_name, Wakers wakers)
    : worker_(std::move(worker)),
      key_(key),
      wakers_(std::move(wakers)),
      peer_name_(std::move(peer_name)) {
  heard_at_ = sent_at_ = now_ns();
}

void UcxLink::close() {
  silent_ = true;
  if (endpoint_ != nullptr) worker_->close_endpoint(std::exchange(endpoint_, nullptr));
}

Status UcxLink::open(const std::string& address) {
  Result<ucp_ep_h> endpoint = worker_->open_endpoint(address, *this);
  if (!endpoint.ok()) return endpoint.status();
  endpoint_ = endpoint.value();
  const std::vector<std::string> routes = worker_->routes(endpoint_);
  const auto tcp = std::count_if(routes.begin(), routes.end(), [](const std::string& route) {
    return route.starts_with("tcp/");
  });
  // What fits into one segment goes over one interface; UCX shares out what is longer.
  if (tcp > 1) chunk_bytes_ = kRails * kChunkBytes;
  window_ = ChunkWindow(chunk_bytes_);
  return {};
}

std::string UcxLink::route() const {
  std::string text;
  for (const std::string& route : worker_->routes(endpoint_)) {
    text += (text.empty() ? "" : ", ") + route;
  }
  return text;
}

void UcxLink::set_peer(uint64_t key, std::string name) {
  peer_key_ = key;
  const std::lock_guard lock(inbox_mutex_);
  peer_name_ = std::move(name);
}

std::string UcxLink::peer_name() const {
  const std::lock_guard lock(inbox_mutex_);
  return peer_name_;
}

Status UcxLink::send(const MessageHeader& header, std::span<const Segment> body, uint64_t puts) {
  const size_t bytes = total_bytes(body);
  unsent_.fetch_add(bytes);
  sent_at_.store(now_ns(), std::memory_order_relaxed);
  Status status = worker_->send(endpoint_, bytes_of(header), body, *this, puts);
  if (!status.ok()) unsent_.fetch_sub(bytes);
  return status;
}

Status UcxLink::send_control(MessageKind kind, std::span<const std::byte> body, uint64_t to_key) {
  // What was wrong is told after the link has failed.
  const bool refused = silent_ || (failed() && kind != MessageKind::kGivenUp);
  if (refused || endpoint_ == nullptr) {
    return failed() ? failure() : Status::peer_lost("the link is closed");
  }
  const Segment piece = segment_of(body);
  return send({.key = to_key, .kind = kind}, {&piece, 1});
}

void UcxLink::say_goodbye() {
  if (!silent_ && !failed() && endpoint_ != nullptr && peer_key_ != 0) {
    const MessageHeader header{
        .key = peer_key_, .kind = MessageKind::kGoodbye, .offset = sent_.load()};
    awaits_farewell_ = true;
    if (!send(header, {}).ok()) awaits_farewell_ = false;
  }
  silent_ = true;
}

void UcxLink::tell_given_up(const std::string& why) {
  static_cast<void>(send_control(MessageKind::kGivenUp, std::as_bytes(std::span(why)), peer_key_));
}

void UcxLink::keep_alive(Nanoseconds now, Nanoseconds interval) {
  if (failed() || silent_ || peer_key_ == 0) return;
  const Nanoseconds quiet = now - heard_at_.load(std::memory_order_relaxed);
  if (quiet > kSilentHeartbeats * interval) {
    return lose(" has been silent for " + std::to_string(quiet / 1'000'000) + " ms");
  }
  if (now - sent_at_.load(std::memory_order_relaxed) >= interval) {
    static_cast<void>(send_control(MessageKind::kHeartbeat, {}, peer_key_));
  }
}

bool UcxLink::try_send(std::span<const std::byte> head, std::span<const Segment> body) {
  if (failed() || silent_) return true;  // nobody will miss it
  if (unsent_.load() > kMostUnsent) {
    wants_room_.store(true);
    if (unsent_.load() > kMostUnsent) return false;
  }
  std::vector<Segment> pieces{segment_of(head)};
  pieces.insert(pieces.end(), body.begin(), body.end());
  const MessageHeader header{
      .key = peer_key_, .kind = MessageKind::kRecord, .number = records_sent_};
  if (send(header, pieces).ok()) {
    ++records_sent_;
    ++sent_;
  }
  return true;
}

bool UcxLink::poll_record(LinkSink& sink) {
  HeldData record;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (records_.empty()) return false;
    record = records_.take();
  }
  sink.on_record(record.bytes());
  return true;
}

void UcxLink::take_credits() {
  std::array<uint64_t, kPriorityLevels> credits;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!std::exchange(new_credits_, false)) return;
    credits = credits_;
  }
  const Nanoseconds now = now_ns();
  for (int level = 0; level < kPriorityLevels; ++level) {
    if (!window_.note_taken(level, credits[level], now)) {
      distrust("has taken chunks that were never sent");
    }
  }
}

bool UcxLink::can_put(int level, size_t bytes) {
  take_credits();
  return window_.has_room(level, bytes);
}

bool UcxLink::try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) {
  const size_t bytes = total_bytes(pieces);
  if (failed() || silent_ || !can_put(level, bytes)) return false;
  const MessageHeader header{.key = peer_key_,
                             .kind = MessageKind::kChunk,
                             .level = static_cast<uint8_t>(level),
                             .number = chunks_sent_[level],
                             .token = tag.token,
                             .offset = tag.offset};
  if (!send(header, pieces, puts_ + 1).ok()) return false;
  ++puts_;
  ++chunks_sent_[level];
  ++sent_;
  window_.note_put(level, bytes, now_ns());
  return true;
}

bool UcxLink::poll_chunk(int level, LinkSink& sink) {
  Chunk chunk;
  bool last = false;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (chunks_[level].empty()) return false;
    chunk = chunks_[level].take();
    last = chunks_[level].empty();
  }
  sink.on_chunk(chunk.tag, chunk.data.bytes());
  note_taken(level, chunk.data.bytes().size(), last);
  return true;
}

void UcxLink::note_taken(int level, size_t bytes, bool last) {
  taken_[level] += bytes;
  if (last || taken_[level] - told_[level] >= kCreditEvery) return_credit(level);
}

void UcxLink::return_credits() {
  for (int level = 0; level < kPriorityLevels; ++level) {
    if (taken_[level] != told_[level]) return_credit(level);
  }
}

void UcxLink::return_credit(int level) {
  told_[level] = taken_[level];
  const MessageHeader credit{.key = peer_key_,
                             .kind = MessageKind::kCredit,
                             .level = static_cast<uint8_t>(level),
                             .offset = told_[level]};
  if (!failed() && !silent_) static_cast<void>(send(credit, {}));
}

Status UcxLink::pull(uint64_t, std::byte*, size_t) {
  return Status::invalid_argument("the memory of " + peer_name() + " cannot be read from here");
}

bool UcxLink::on_message(const MessageHeader& header, ArrivedData& data) {
  heard_at_.store(now_ns(), std::memory_order_relaxed);
  switch (header.kind) {
    case MessageKind::kRecord:
      on_record(header, data);
      break;
    case MessageKind::kChunk:
      return on_chunk(header, data);
    case MessageKind::kCredit:
      on_credit(header);
      break;
    case MessageKind::kGoodbye:
      on_goodbye(header.offset);
      break;
    case MessageKind::kFarewell:
      awaits_farewell_ = false;
      break;
    case MessageKind::kGivenUp: {
      const std::span<const std::byte> why = data.bytes();
      lose(" has given up the link: " +
           readable({reinterpret_cast<const char*>(why.data()), why.size()}));
      break;
    }
    case MessageKind::kHandshake:
    case MessageKind::kHeartbeat:
      break;
  }
  return false;
}

void UcxLink::on_record(const MessageHeader& header, ArrivedData& data) {
  {
    const std::lock_guard lock(inbox_mutex_);
    records_.add(header.number, data.hold());
  }
  wakers_.arrived();
  note_received();
}

void UcxLink::note_received() {
  ++received_;
  if (received_ == ends_at_) on_goodbye(ends_at_);
}

// Counts once all that was sent before is there, which may come later.
void UcxLink::on_goodbye(uint64_t sent) {
  ends_at_ = sent;
  if (received_ != sent) return;
  if (endpoint_ != nullptr) {
    static_cast<void>(send({.key = peer_key_, .kind = MessageKind::kFarewell}, {}));
  }
  lose(" closed its end");
}

bool UcxLink::on_chunk(const MessageHeader& header, ArrivedData& data) {
  if (header.level >= kPriorityLevels) {
    distrust("sent a chunk of no priority");
    return false;
  }
  const bool placed = place(header, data);
  if (!placed) keep_chunk(header, data);
  note_received();
  return placed;
}

bool UcxLink::place(const MessageHeader& header, const ArrivedData& data) {
  if (!worker_->polling() || sink_ == nullptr) return false;
  {
    const std::lock_guard lock(inbox_mutex_);
    if (!chunks_[header.level].pass(header.number)) return false;
  }
  sink_->on_chunk({header.token, header.offset}, data.bytes());
  note_taken(header.level, data.bytes().size(), false);
  return true;
}

void UcxLink::keep_chunk(const MessageHeader& header, ArrivedData& data) {
  {
    const std::lock_guard lock(inbox_mutex_);
    OrderedInbox<Chunk>& inbox = chunks_[header.level];
    inbox.add(header.number, {{header.token, header.offset}, data.hold()});
    if (inbox.early() <= kMostEarly && records_.early() <= kMostEarly) {
      return wakers_.arrived();
    }
  }
  distrust("sends messages out of their order");
}

void UcxLink::on_credit(const MessageHeader& header) {
  if (header.level >= kPriorityLevels) return distrust("has taken a chunk of no priority");
  {
    const std::lock_guard lock(inbox_mutex_);
    // Credits may overtake each other, too.
    uint64_t& known = credits_[header.level];
    if (header.offset <= known) return;
    known = header.offset;
    new_credits_ = true;
  }
  wakers_.arrived();
}

void UcxLink::on_sent(size_t bytes, uint64_t puts) {
  unsent_.fetch_sub(bytes);
  if (puts != 0) note_read(puts);
  if (wants_room_.exchange(false)) wakers_.all();
}

// With two rails a chunk may be out before one that was put earlier.
void UcxLink::note_read(uint64_t puts) {
  uint64_t read = read_.load();
  if (puts != read + 1) {
    read_early_.insert(puts);
    return;
  }
  do ++read;
  while (read_early_.erase(read + 1) > 0);
  read_.store(read);
  wakers_.arrived();
}

void UcxLink::on_error(const std::string& why) { lose(" " + why); }

void UcxLink::lose(const std::string& why) {
  fail(Status::peer_lost(peer_name() + why));
  wakers_.all();
}

void UcxLink::distrust(const std::string& why) {
  give_up(Status::peer_lost(peer_name() + " " + why));
  wakers_.all();
}

}  // namespace freescale::ucx
