#pragma once

#include <functional>
#include <thread>

namespace freescale {

// Starts a thread of the library's own: under a name of at most 15 characters, with all signals
// blocked, as those belong to the program's threads, and never preempting one of them
// (SCHED_BATCH). An engine thread that goes back to its bulk when an urgent call has ended would
// otherwise take the core from the caller that just returned, for a whole time slice: urgent beside
// bulk was 17 to 50 times slower than alone, now 2 to 3 times (docs/performance.md). Throws
// std::system_error when the system has no thread left.
std::thread start_service_thread(const char* name, std::function<void()> body);

}  // namespace freescale
