#pragma once

#include <memory>

#include "cpp/device/pinned_words.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {

// Kernels for probes: one that fills a device, and one that does nothing. On a device they are PTX
// that the driver compiles; on the stand-in driver, its pretended kernels. Calls need the
// context current, and a device that outlives the object. What fails ends the process.
class Kernels {
 public:
  static std::unique_ptr<Kernels> create(const ProbeDevice& device);
  virtual ~Kernels() = default;

  // Occupies every SM, so that nothing else that needs one can start, until `until` is not zero, or
  // for kLongest. Returns once it does.
  virtual void fill(cuda::Stream stream, cuda::PinnedWord until) = 0;
  static constexpr uint64_t kLongestSeconds = 20;

  // Enqueues a kernel that does nothing: one that was used before, or one that never was, whose
  // code the driver still has to load.
  virtual void launch(cuda::Stream stream) = 0;
  virtual void launch_new(cuda::Stream stream) = 0;

  // Whether a kernel has to wait while another one fills the device. Not on the stand-in.
  virtual bool exclude_each_other() const = 0;
};

}  // namespace freescale::probe
