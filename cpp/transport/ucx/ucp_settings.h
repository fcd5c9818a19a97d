#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "cpp/base/status.h"
#include "cpp/transport/ucx/ucp_library.h"

namespace freescale::ucx {

// So much of a message goes at a time. With its headers it fits into one receive buffer of TCP's
// (the settings see to it), which UCX hands on as it is; a longer message it first puts together in
// memory that it allocates, and glibc gives that back to the system and faults it in again each
// time.
constexpr size_t kChunkBytes = 128 << 10;

// UCX's configuration as the environment has it (UCX_*), with what this transport needs where the
// environment says nothing. `interfaces`: those to use, as in UCX_NET_DEVICES; empty: UCX chooses.
// `patience`: for how long a connection may not move before it is lost. The caller releases it.
Result<ucp_config_t*> read_settings(const UcpLibrary& ucp, const std::string& interfaces,
                                    std::chrono::milliseconds patience);

}  // namespace freescale::ucx
