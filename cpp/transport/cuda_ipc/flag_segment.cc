#include "cpp/transport/cuda_ipc/flag_segment.h"

#include <atomic>
#include <span>

namespace freescale::cuda {
namespace {

std::span<std::atomic<uint32_t>> words_in(const SharedMemory& memory) {
  return {reinterpret_cast<std::atomic<uint32_t>*>(memory.data()), FlagSegment::kWords};
}

}  // namespace

FlagWord& FlagWord::operator=(FlagWord&& other) noexcept {
  std::swap(segment_, other.segment_);
  std::swap(index_, other.index_);
  std::swap(target_, other.target_);
  return *this;
}

FlagWord::~FlagWord() {
  if (segment_ != nullptr) segment_->put_back(index_);
}

Result<FlagSegment*> FlagSegment::of_process(const PrimaryContext& context) {
  static std::mutex mutex;
  static FlagSegment* shared = nullptr;
  const std::lock_guard lock(mutex);
  if (shared != nullptr) return shared;
  Result<FlagSegment*> created = create(context);
  if (created.ok()) shared = created.value();
  return created;
}

Result<FlagSegment*> FlagSegment::create(const PrimaryContext& context) {
  Result<SharedMemory> memory = SharedMemory::create("freescale-flags", kBytes);
  if (!memory.ok()) return memory.status();
  // A context of its own, which lives as long as the registration.
  int ordinal = 0;
  {
    const CurrentContext current(context);
    if (!current.status().ok()) return current.status();
    if (Status status = context.driver().ctx_get_device(&ordinal); !status.ok()) return status;
  }
  Result<PrimaryContext> retained = PrimaryContext::retain(context.driver(), ordinal);
  if (!retained.ok()) return retained.status();
  auto* const kept = new PrimaryContext(std::move(retained.value()));
  Result<PinnedWords> words = PinnedWords::register_memory(*kept, words_in(memory.value()));
  if (!words.ok()) {
    delete kept;
    return words.status();
  }
  return new FlagSegment(std::move(memory.value()), std::move(words.value()));
}

Result<FlagWord> FlagSegment::take() {
  const std::lock_guard lock(mutex_);
  uint32_t index = 0;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (fresh_ < kWords) {
    index = fresh_++;
  } else {
    return Status::system("too many messages in device memory are in flight: all " +
                          std::to_string(kWords) + " words for their signals are in use");
  }
  const PinnedWord word = words_[index];
  // Counts on from the event before, for which a stream may still be about to look.
  const uint32_t value = word.host->load(std::memory_order_acquire) + 1;
  return FlagWord(this, index, {word, value});
}

void FlagSegment::put_back(uint32_t index) {
  const std::lock_guard lock(mutex_);
  free_.push_back(index);
}

Result<std::unique_ptr<PeerFlags>> PeerFlags::open(const PrimaryContext& context, UniqueFd fd) {
  Result<SharedMemory> memory = SharedMemory::open(std::move(fd), FlagSegment::kBytes);
  if (!memory.ok()) return memory.status();
  memory.value().close_fd();
  Result<PinnedWords> words = PinnedWords::register_memory(context, words_in(memory.value()));
  if (!words.ok()) return words.status();
  return std::unique_ptr<PeerFlags>(
      new PeerFlags(std::move(memory.value()), std::move(words.value())));
}

}  // namespace freescale::cuda
