// Whether copies that are ready are held up by one that waits, with more and more streams: engines
// may have a head of line, and streams share the hardware's queues.

#include <chrono>
#include <string>

#include "cpp/device/engine_order_probe.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

void run(bool brief) {
  const ProbeDevice device;
  for (const int streams : {1, 2, 4, 8, 16, 32, 40}) {
    if (brief && streams != 1 && streams != 40) continue;
    const Result<bool> blocked = cuda::blocks_at_head(
        device.context(), Deadline::after(std::chrono::seconds(brief ? 1 : 2)), streams);
    if (!blocked.ok() && blocked.status().code() != StatusCode::kTimedOut) {
      give_up(blocked.status().message());
    }
    fact("ready copies on " + std::to_string(streams) + " streams, beside one that waits",
         !blocked.ok()     ? "unknown: " + blocked.status().message()
         : blocked.value() ? "held up"
                           : "go on");
  }
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) { freescale::probe::run(freescale::probe::is_short(argc, argv)); }
