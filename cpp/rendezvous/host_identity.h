#pragma once

#include <cstdint>
#include <string>

#include "cpp/base/status.h"

namespace freescale {

// Names what processes must share to reach each other by abstract Unix sockets: a running kernel
// and a network namespace. Equal for two processes exactly if a socket of one can be there for the
// other; so one that does not answer is dead, and not on another host. Never made of a host name,
// which several hosts may share. `name` adds to it: processes with different ones count as on
// different hosts. An error, and not another host, where it cannot be read for lack of descriptors.
Result<uint64_t> host_identity(const std::string& name);

// What people call this host, for messages.
std::string host_name();

}  // namespace freescale
