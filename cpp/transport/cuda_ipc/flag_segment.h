#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cpp/device/cuda_context.h"
#include "cpp/device/pinned_words.h"
#include "cpp/transport/shm/shared_memory.h"

namespace freescale::cuda {

class FlagSegment;

// A word of this process's segment on loan: for one event, which is over when the word has reached
// value(). Returned at the end, unless that event may still come.
class FlagWord {
 public:
  FlagWord() = default;
  FlagWord(FlagWord&& other) noexcept
      : segment_(std::exchange(other.segment_, nullptr)),
        index_(other.index_),
        target_(other.target_) {}
  FlagWord& operator=(FlagWord&& other) noexcept;
  ~FlagWord();

  bool valid() const { return segment_ != nullptr; }
  uint32_t index() const { return index_; }
  uint32_t value() const { return target_.value; }
  const WordValue& target() const { return target_; }
  bool reached() const { return target_.reached(); }
  // Makes it so by the host, for those who wait; the event may still come.
  void poison() const { target_.word.host->store(target_.value, std::memory_order_release); }
  // Never returned: a late write would be taken for the next event.
  void keep_for_ever() { segment_ = nullptr; }

 private:
  friend class FlagSegment;
  FlagWord(FlagSegment* segment, uint32_t index, WordValue target)
      : segment_(segment), index_(index), target_(target) {}

  FlagSegment* segment_ = nullptr;
  uint32_t index_ = 0;
  WordValue target_;
};

// Pinned words that streams of this process, and of its peers, write and wait for. One in each
// process, for its life: a stream may wait for a word longer than anybody here keeps track of.
// Thread-safe.
class FlagSegment {
 public:
  static constexpr uint32_t kWords = 1 << 16;
  static constexpr size_t kBytes = kWords * sizeof(uint32_t);

  // Registered in every context of the process, by way of the one of the first call.
  static Result<FlagSegment*> of_process(const PrimaryContext& context);

  // An error when all are on loan: some ten thousand messages are in flight.
  Result<FlagWord> take();
  // For peers.
  int fd() const { return memory_.fd(); }

 private:
  friend class FlagWord;
  FlagSegment(SharedMemory memory, PinnedWords words)
      : memory_(std::move(memory)), words_(std::move(words)) {}
  static Result<FlagSegment*> create(const PrimaryContext& context);
  void put_back(uint32_t index);

  SharedMemory memory_;
  PinnedWords words_;
  std::mutex mutex_;  // guards the rest
  uint32_t fresh_ = 0;
  std::vector<uint32_t> free_;
};

// The segment of a peer process, mapped here and known to this process's streams.
class PeerFlags {
 public:
  static Result<std::unique_ptr<PeerFlags>> open(const PrimaryContext& context, UniqueFd fd);

  // `index` is below FlagSegment::kWords.
  PinnedWord operator[](uint32_t index) const { return words_[index]; }

 private:
  PeerFlags(SharedMemory memory, PinnedWords words)
      : memory_(std::move(memory)), words_(std::move(words)) {}

  SharedMemory memory_;
  PinnedWords words_;
};

}  // namespace freescale::cuda
