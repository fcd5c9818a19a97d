#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "cpp/transport/cuda_ipc/device_lane.h"
#include "cpp/transport/cuda_ipc/flag_segment.h"
#include "cpp/transport/cuda_ipc/staged_message.h"
#include "cpp/transport/device_call.h"

namespace freescale::cuda {

class CudaDevice;

// What the sender of a message tells its receiver; of one that comes through a ring the receiver
// tells kSubmitted as well. Of one that comes from another host the sender tells nothing else.
enum class News : uint32_t {
  kSubmitted = 1,  // all its copies are with the driver
  kReleased,       // nothing more will be written
  kStaged,         // the message comes through the ring of a level, from its chunk `first` on
};
struct NewsOfCopy {
  News what = News::kReleased;
  uint32_t level = 0;
  uint32_t first = 0;
};
static_assert(std::is_trivially_copyable_v<NewsOfCopy>);
void write_news(const NewsOfCopy& news, std::vector<std::byte>* bytes);
Result<NewsOfCopy> read_news(std::span<const std::byte> bytes);

// The receiving end of a message: the sender writes it, and then the word. Or, where its device
// cannot, this rank takes it out of a ring.
class ReceiveTransfer final : public DeviceTransfer,
                              public Submission,
                              public std::enable_shared_from_this<ReceiveTransfer> {
 public:
  // `ready`: this rank's memory may be written. `arrived`: it was.
  ReceiveTransfer(CudaDevice& device, DeviceLane& lane, std::vector<Segment> memory,
                  WordValue ready, WordValue arrived)
      : device_(device),
        lane_(lane),
        memory_(std::move(memory)),
        ready_(ready),
        arrived_(arrived) {}

  // DeviceTransfer
  State state() override;
  Status failure() const override;
  bool needs_peer() override;
  bool peer_has_come() override { return true; }
  bool take_news(std::vector<std::byte>* news) override;
  Status on_news(std::span<const std::byte> news) override;
  void abandon() override;
  void lose_peer() override;
  bool staged() const override { return staged_; }

  // Submission, of a message that comes through a ring.
  bool try_submit() override;
  bool try_close() override;

 private:
  enum class Phase { kQueued, kSubmitted, kClosed, kFailed };
  Result<bool> take_turn();
  Result<bool> prepare();
  bool settle(const Result<bool>& done);
  Result<bool> close();
  void enter(Phase phase);

  CudaDevice& device_;
  DeviceLane& lane_;
  const std::vector<Segment> memory_;
  const WordValue ready_;
  const WordValue arrived_;

  // The engine's.
  bool submitted_ = false;
  bool told_submitted_ = false;
  bool released_ = false;
  bool staged_ = false;
  bool over_ = false;

  std::atomic<bool> abandoned_{false};
  // Of a message that comes through a ring. Set before it is first submitted...
  uint32_t level_ = 0;
  uint32_t first_ = 0;
  // ...and the driver's thread's, until the phase says that they are set.
  CopyQueue* queue_ = nullptr;
  std::unique_ptr<StagedMessage> message_;
  Status failure_;
  std::atomic<Phase> phase_{Phase::kQueued};
};

}  // namespace freescale::cuda
