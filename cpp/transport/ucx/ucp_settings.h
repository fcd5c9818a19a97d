#pragma once

#include <chrono>
#include <string>

#include "cpp/base/status.h"
#include "cpp/transport/ucx/ucp_library.h"

namespace freescale::ucx {

// UCX's configuration as the environment has it (UCX_*), with what this transport needs where the
// environment says nothing. `interfaces`: those to use, as in UCX_NET_DEVICES; empty: UCX chooses.
// `patience`: for how long a connection may not move before it is lost. The caller releases it.
Result<ucp_config_t*> read_settings(const UcpLibrary& ucp, const std::string& interfaces,
                                    std::chrono::milliseconds patience);

}  // namespace freescale::ucx
