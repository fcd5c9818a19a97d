#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <vector>

#include "cpp/base/status.h"

namespace freescale::ucx {

// The functions of UCX that are used, found at run time: the same binary serves any UCX from 1.13
// on, and hosts that have none. Only types come from UCX's headers.
//
// Which library: FREESCALE_UCX_LIBRARY; one that the process has loaded already, as a second one
// beside it fails to load; the system's; the candidates, in their order.
class UcpLibrary {
 public:
  // Loads it on the first call, for the life of the process. An error lists what was tried.
  static Result<const UcpLibrary*> get(const std::vector<std::string>& candidates);

  // "1.22.0".
  const std::string& version() const { return version_; }
  // Where it was found.
  const std::string& path() const { return path_; }

#define FREESCALE_UCP_FUNCTIONS(apply)                                                             \
  apply(ucp_am_data_release) apply(ucp_am_send_nbx) apply(ucp_cleanup) apply(ucp_config_modify)    \
      apply(ucp_config_read) apply(ucp_config_release) apply(ucp_ep_close_nbx)                     \
          apply(ucp_ep_create) apply(ucp_ep_query) apply(ucp_get_version) apply(ucp_init_version)  \
              apply(ucp_request_check_status) apply(ucp_request_free) apply(ucp_worker_arm)        \
                  apply(ucp_worker_create) apply(ucp_worker_destroy) apply(ucp_worker_get_address) \
                      apply(ucp_worker_get_efd) apply(ucp_worker_progress)                         \
                          apply(ucp_worker_release_address) apply(ucp_worker_set_am_recv_handler)  \
                              apply(ucs_status_string)
#define FREESCALE_UCP_MEMBER(function) decltype(&::function) function = nullptr;
  FREESCALE_UCP_FUNCTIONS(FREESCALE_UCP_MEMBER)
#undef FREESCALE_UCP_MEMBER

  // `what` failed with `status`.
  Status error(const char* what, ucs_status_t status) const;

 private:
  UcpLibrary() = default;
  // Fills the table; else says what is missing.
  Status bind(void* library);

  std::string version_;
  std::string path_;
};

}  // namespace freescale::ucx
