#include "cpp/device/copy_stream.h"

#include <algorithm>
#include <utility>

namespace freescale::cuda {
namespace {

// A request is cut into no more chunks than this, larger ones if need be, and this many requests
// fit in. A chunk is three operations of a stream, whose queue is known to hold about a thousand.
constexpr uint32_t kChunksOfRequest = 64;
constexpr uint32_t kChunksAhead = 256;

// Added to a word it is beyond everything that any stream waits for, and half of the way round.
constexpr uint32_t kBeyond = 1u << 30;

size_t whole_chunk(size_t bytes, size_t chunk_bytes) {
  const size_t smallest = (bytes + kChunksOfRequest - 1) / kChunksOfRequest;
  return std::max({smallest, chunk_bytes, size_t{1}});
}

}  // namespace

Result<std::unique_ptr<CopyStream>> CopyStream::create(const PrimaryContext& context, PinnedWord go,
                                                       PinnedWord progress, Options options) {
  const CurrentContext current(context);
  if (!current.status().ok()) return current.status();
  // No priority: that of a stream orders kernels, not copies (pytorch/torchrec#4303).
  Stream stream = nullptr;
  if (Status status = context.driver().stream_create_with_priority(&stream, kStreamNonBlocking, 0);
      !status.ok()) {
    return status;
  }
  return std::unique_ptr<CopyStream>(new CopyStream(context, stream, go, progress, options));
}

CopyStream::CopyStream(const PrimaryContext& context, Stream stream, PinnedWord go,
                       PinnedWord progress, Options options)
    : context_(context),
      stream_(stream),
      go_(go),
      progress_(progress),
      chunk_bytes_(options.chunk_bytes),
      submitted_(options.first),
      ready_(options.first),
      released_(options.first) {
  go_.host->store(options.first, std::memory_order_relaxed);
  progress_.host->store(options.first, std::memory_order_release);
}

CopyStream::~CopyStream() {
  const CurrentContext current(context_);
  // Fails only with a context that is lost, and its streams with it.
  context_.driver().stream_destroy.code(stream_);
}

bool CopyStream::has_room() const {
  const uint32_t open = submitted_.load() - progress_.host->load(std::memory_order_acquire);
  return open + kChunksOfRequest <= kChunksAhead;
}

Status CopyStream::submit(const CopyRequest& request) {
  if (failed_.load() || aborted_.load()) return Status::cancelled("the copy stream was given up");
  if (!has_room()) return Status::invalid_argument("the copy stream has no room");
  const CurrentContext current(context_);
  if (!current.status().ok()) return current.status();

  Status status = enqueue(request, whole_chunk(request.bytes, chunk_bytes_));
  if (!status.ok()) {
    failed_.store(true);
    return status;
  }
  const std::lock_guard lock(mutex_);
  pending_.push_back({submitted_.load(), request.ready});
  return {};
}

Status CopyStream::check() const {
  const CurrentContext current(context_);
  if (!current.status().ok()) return current.status();
  const Driver& driver = context_.driver();
  const Code code = driver.stream_query.code(stream_);
  return code == Code::kNotReady ? Status() : driver.stream_query.status(code);
}

// A request without bytes is one chunk, so that its end has its place in the order as well.
Status CopyStream::enqueue(const CopyRequest& request, size_t chunk_bytes) {
  size_t offset = 0;
  do {
    const size_t bytes = std::min(chunk_bytes, request.bytes - offset);
    if (Status status = enqueue_chunk(request, offset, bytes); !status.ok()) return status;
    offset += bytes;
  } while (offset < request.bytes);
  if (!request.done.has_value()) return {};
  return context_.driver().stream_write_value32(stream_, request.done->word.device,
                                                request.done->value, kWriteDefault);
}

Status CopyStream::enqueue_chunk(const CopyRequest& request, size_t offset, size_t bytes) {
  const Driver& driver = context_.driver();
  const uint32_t number = submitted_.load() + 1;
  Status status = driver.stream_wait_value32(stream_, go_.device, number, kWaitGreaterOrEqual);
  if (status.ok() && bytes > 0) {
    status = driver.memcpy_async(request.to + offset, request.from + offset, bytes, stream_);
  }
  // Not with the copy in one batch, which has no order. The write's own fence orders it behind the
  // bytes for everybody who sees it.
  if (status.ok()) {
    status = driver.stream_write_value32(stream_, progress_.device, number, kWriteDefault);
  }
  if (status.ok()) submitted_.store(number);
  return status;
}

uint32_t CopyStream::releasable() {
  const std::lock_guard lock(mutex_);
  return count_releasable();
}

uint32_t CopyStream::count_releasable() {
  while (!pending_.empty() &&
         std::all_of(pending_.front().ready.begin(), pending_.front().ready.end(),
                     [](const WordValue& word) { return word.reached(); })) {
    ready_ = pending_.front().last;
    pending_.pop_front();
  }
  return ready_ - released_;
}

void CopyStream::release(uint32_t chunks) {
  const std::lock_guard lock(mutex_);
  released_ += std::min(chunks, count_releasable());
  // Release: what was seen of the words of `ready` happened before the copies.
  if (!aborted_.load()) go_.host->store(released_, std::memory_order_release);
}

uint32_t CopyStream::in_flight() {
  const std::lock_guard lock(mutex_);
  const uint32_t arrived = progress_.host->load(std::memory_order_acquire);
  // Further than it was let go only after abort().
  return has_reached(arrived, released_) ? 0 : released_ - arrived;
}

bool CopyStream::drained() const {
  return !failed_.load() && progress_.host->load(std::memory_order_acquire) == submitted_.load();
}

void CopyStream::abort() {
  const std::lock_guard lock(mutex_);
  aborted_.store(true);
  go_.host->store(submitted_.load() + kBeyond, std::memory_order_release);
}

}  // namespace freescale::cuda
