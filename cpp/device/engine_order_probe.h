#pragma once

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/device/cuda_context.h"

namespace freescale::cuda {

// Whether copies that are ready are held up by one that was submitted before them, on another
// stream, and still waits for a word: where it is so, copies must not be submitted ahead
// (docs/adr/0013-two-ways-to-submit-copies.md). Tries copies to the host, from it, and within the
// device, on `streams` streams beside the one that waits: streams share the hardware's queues too,
// so ask for as many as will be used.
//
// Without a hold-up it returns as soon as the copies are there, with one at `deadline`, and then it
// may also be a kernel that fills the device. kTimedOut if copies came too late even while none
// waited, so that nothing is known. Ends only when its streams have drained, as they do unless a
// kernel never ends. Leaves nothing behind. Starts a thread, which never calls the driver, so that
// the wait ends at `deadline` whoever holds the driver's lock.
Result<bool> blocks_at_head(const PrimaryContext& context, Deadline deadline, int streams = 8);

}  // namespace freescale::cuda
