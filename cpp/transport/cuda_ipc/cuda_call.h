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
#include "cpp/transport/device_call.h"

namespace freescale::cuda {

class CudaDevice;

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

  CudaCall(CudaDevice& device, std::shared_ptr<const void> keep);
  Status add_receive(const CallMemory::Message& message);
  Status add_send(const CallMemory::Message& message);
  Status add_local(const CallMemory& memory);
  template <typename Function>
  void for_each_end(Function function) const;

  CudaDevice& device_;
  const std::shared_ptr<const PrimaryContext> context_;
  const std::shared_ptr<const void> keep_;
  FlagWord ready_;
  bool marked_ = false;  // a stream writes it
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  std::optional<Local> local_;
};

}  // namespace freescale::cuda
