#pragma once

#include "cpp/base/status.h"
#include "cpp/transport/ucx/ucp_library.h"

namespace freescale::ucx {

// UCX's configuration as the environment has it (UCX_*), with what this transport needs where the
// environment says nothing. `interfaces`: those to use, as in UCX_NET_DEVICES; empty: UCX chooses.
// The caller releases it.
Result<ucp_config_t*> read_settings(const UcpLibrary& ucp, const std::string& interfaces);

}  // namespace freescale::ucx
