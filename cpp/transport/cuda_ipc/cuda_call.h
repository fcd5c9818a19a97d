#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cpp/device/segment.h"
#include "cpp/transport/cuda_ipc/device_lane.h"
#include "cpp/transport/cuda_ipc/flag_segment.h"
#include "cpp/transport/cuda_ipc/host_buffers.h"
#include "cpp/transport/device_call.h"

namespace freescale::cuda {

class CudaDevice;
class SendTransfer;

// The messages of one call, in device memory. Empty ones count for nothing here.
struct CallMemory {
  struct Message {
    int rank = 0;                // for error messages
    std::shared_ptr<Link> peer;  // null: stays on this rank
    std::vector<Segment> segments;
  };
  std::vector<Message> sends;
  std::vector<Message> receives;
  // Keeps all of it.
  std::shared_ptr<const void> keep;
};

// A call on a device of this process. Made by CudaDevice::begin(); of that only DeviceCall's
// methods need that it still exists.
class CudaCall final : public DeviceCall {
 public:
  // For CudaDevice.
  static Result<std::shared_ptr<CudaCall>> create(CudaDevice& device, CallMemory memory);
  Status mark_ready(Stream stream);

  // From here on `stream` waits until the call's memory is done with: what it receives is there,
  // and what it sends may be written. Calls the driver; any thread.
  Status wait_on(Stream stream) const;

  ~CudaCall() override;

  // DeviceCall
  Result<std::shared_ptr<DeviceTransfer>> receive(Link& from,
                                                  std::vector<std::byte>* grant) override;
  Result<std::shared_ptr<DeviceTransfer>> send(Link& to, int level,
                                               std::span<const std::byte> grant) override;
  Result<std::shared_ptr<DeviceTransfer>> copy(int level) override;
  Result<std::shared_ptr<DeviceTransfer>> stage_out(Link& to, int level,
                                                    std::vector<Segment>* memory) override;
  Result<std::shared_ptr<DeviceTransfer>> stage_in(Link& from, int level,
                                                   std::vector<Segment>* memory) override;
  void stage_in_may_go(Link& from) override;
  void pace(Nanoseconds now) override;
  void give_up() override;

 private:
  struct Send {
    DeviceLane* lane;
    std::vector<Segment> segments;
    FlagWord sent;
  };
  struct Receive {
    DeviceLane* lane;
    std::vector<ExportedPiece> pieces;  // what the peer is told...
    std::vector<Segment> memory;        // ...and where they are here
    FlagWord arrived;
  };
  struct Local {
    DeviceLane* lane;
    std::vector<Segment> from;
    std::vector<Segment> to;
    FlagWord copied;
  };

  // A message to or from a rank of another host, by way of a part of `buffer_`.
  struct Far {
    std::shared_ptr<Link> link;
    std::vector<Segment> segments;
    size_t place;     // in the buffer
    FlagWord over;    // the device's memory is done with
    FlagWord landed;  // of one that comes: it is all in the buffer
    size_t bytes() const { return total_bytes(segments); }
  };
  // Lanes on loan, once for what goes and once for what comes: each holds up the other's copies.
  struct HostLanes {
    std::shared_ptr<LanePool> pool;
    DeviceLane* out;
    DeviceLane* in;
  };

  CudaCall(CudaDevice& device, std::shared_ptr<const void> keep);
  Status add_far(const CallMemory& memory);
  Status add_far(const CallMemory::Message& message, std::vector<Far>* to, size_t* place);
  static Far* find_far(std::vector<Far>& all, const Link& link);
  Segment in_buffer(const Far& far) const;
  Status add_receive(const CallMemory::Message& message);
  Status add_send(const CallMemory::Message& message);
  Status add_local(const CallMemory& memory);
  template <typename Function>
  void for_each_end(Function function) const;
  // From one place of this rank to another, to be submitted; `over` is written at the end.
  std::shared_ptr<SendTransfer> copy_on_rank(DeviceLane& lane, int level,
                                             const std::vector<Segment>& from,
                                             const std::vector<Segment>& to,
                                             const FlagWord& over) const;
  // Submits one from or to the buffer, which waits for `landed`, too.
  Result<std::shared_ptr<DeviceTransfer>> stage(DeviceLane& lane, int level,
                                                std::shared_ptr<SendTransfer> transfer,
                                                std::optional<WordValue> landed);

  CudaDevice& device_;
  const std::shared_ptr<const PrimaryContext> context_;
  const std::shared_ptr<const void> keep_;
  FlagWord ready_;
  bool marked_ = false;  // a stream writes it
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::optional<Local> local_;
  std::vector<Far> far_sends_;
  std::vector<Far> far_receives_;
  HostBuffers::Block buffer_;
  HostLanes host_lanes_{};
};

}  // namespace freescale::cuda
