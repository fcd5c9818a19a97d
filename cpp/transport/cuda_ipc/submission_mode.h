#pragma once

namespace freescale::cuda {

// How copies get to the driver (docs/adr/0013-two-ways-to-submit-copies.md).
enum class SubmissionMode {
  kAutomatic,  // kAhead, or kProxy on a device whose engines take copies in the order of submission
  kAhead,
  kProxy,
};

}  // namespace freescale::cuda
