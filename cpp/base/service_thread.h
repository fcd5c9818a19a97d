#pragma once

#include <functional>
#include <thread>

namespace freescale {

// Starts a thread of the library's own: under a name of at most 15 characters, and with all signals
// blocked, as those belong to the program's threads. Throws std::system_error when the system has
// no thread left.
std::thread start_service_thread(const char* name, std::function<void()> body);

}  // namespace freescale
