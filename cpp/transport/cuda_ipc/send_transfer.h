#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cpp/device/copy_queue.h"
#include "cpp/transport/cuda_ipc/aside_messages.h"
#include "cpp/transport/cuda_ipc/device_lane.h"
#include "cpp/transport/cuda_ipc/staged_message.h"
#include "cpp/transport/device_call.h"

namespace freescale::cuda {

class CudaDevice;

// A contiguous part of a message, and where it goes: a piece of the peer's memory, or an address
// of this rank's own.
struct SendPart {
  ExportedPiece piece;
  DevicePtr to = 0;  // not 0: on this rank
  Segment from;
};

// The sending end of a message, or a copy on this rank, be it within the device or between it and
// the host's memory: queues for the driver's thread, then in the lane's queue of its level.
class SendTransfer final : public DeviceTransfer,
                           public Submission,
                           public std::enable_shared_from_this<SendTransfer> {
 public:
  // `ready`: this rank's memory may be touched. `sent`: written when it is done with.
  SendTransfer(CudaDevice& device, DeviceLane& lane, int level, std::vector<SendPart> parts,
               WordValue ready, WordValue sent);
  // For a message to a peer, before it is submitted.
  void set_peer_words(const DeviceGrant& grant) { grant_ = grant; }
  // For a copy from or to the host's memory, likewise: it may go once `further` is reached, too.
  void set_stages(std::optional<WordValue> further) {
    stages_ = true;
    further_ready_ = further;
  }

  // DeviceTransfer
  State state() override;
  Status failure() const override;
  bool needs_peer() override;
  bool peer_has_come() override;
  bool take_news(std::vector<std::byte>* news) override;
  Status on_news(std::span<const std::byte> news) override;
  void abandon() override;
  void lose_peer() override { lane_.interrupt(); }
  bool staged() const override {
    return stages_ || (phase_.load() == Phase::kSubmitted && staged_ != nullptr);
  }

  // Submission
  bool try_submit() override;
  bool try_close() override;

 private:
  enum class Phase {
    kQueued,  // not all of it submitted
    kStaged,  // its chunks in the ring are known, but not all of them submitted
    kSubmitted,
    kClosed,  // abandoned, and everything the driver has of it is before chunk last_
    kFailed,
    kDropped,  // abandoned before anything was submitted
  };
  void enter(Phase phase);
  bool has_to_tell_staged() const;
  bool needs_no_peer_driver() const;
  bool settle(const Result<bool>& done);
  Result<bool> take_turn();
  Result<bool> submit_direct();
  Result<bool> begin_staging();
  Result<bool> submit_staged();
  Result<bool> close();
  // Fills in what all requests have in common. False if this device has no access to the peer's.
  Result<bool> prepare();
  Status add_peer_words();
  Result<bool> open_parts();
  void release_parts();
  // What is next of the message, as far as one request holds it.
  CopyRequest next_request() const;

  CudaDevice& device_;
  DeviceLane& lane_;
  const int level_;
  const std::vector<SendPart> parts_;
  const WordValue ready_;
  const WordValue sent_;
  std::optional<DeviceGrant> grant_;
  bool stages_ = false;
  std::optional<WordValue> further_ready_;

  // The driver's thread's, until the phase says that they are set.
  std::vector<uint64_t> opened_;  // allocations of the peer that are in use
  CopyRequest whole_;             // of as many pieces as there are
  size_t submitted_pieces_ = 0;
  std::optional<WordValue> peer_ready_;
  CopyQueue* queue_ = nullptr;
  std::vector<uint32_t> requests_;  // the last chunk of each
  uint32_t last_ = 0;               // chunk
  std::unique_ptr<StagedMessage> staged_;
  Status failure_;
  std::atomic<Phase> phase_{Phase::kQueued};

  std::atomic<bool> abandoned_{false};
  // The engine's.
  bool peer_submitted_ = false;
  bool told_staged_ = false;
  bool told_submitted_ = false;
  bool told_released_ = false;
  bool over_ = false;
};

}  // namespace freescale::cuda
