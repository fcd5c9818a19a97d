#pragma once

#include <cstdint>

#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"

namespace freescale::cuda {

// A little device memory of this process with contents that peers know: on it they find out, with
// real bytes, whether copies of theirs reach this device and come back as they were. There are
// machines on which the driver says that they do, and they do not. One for each device, for the
// life of the process, since peers have it open.
class AccessTarget {
 public:
  static Result<const AccessTarget*> of_device(const PrimaryContext& context);

  static constexpr size_t kBytes = 4096;
  DevicePtr address() const { return address_; }
  // What its first eight bytes hold.
  uint64_t contents() const { return contents_; }

 private:
  AccessTarget(DevicePtr address, uint64_t contents) : address_(address), contents_(contents) {}

  const DevicePtr address_;
  const uint64_t contents_;
};

// Whether this device reads `contents` from a peer's target, which it sees at `target`, and reads
// what it has written there. `place` says where: different for each of the peers, or they disturb
// each other. Waits for its copies.
Result<bool> reaches(const PrimaryContext& context, DevicePtr target, uint64_t contents,
                     uint32_t place);

}  // namespace freescale::cuda
