#include "cpp/base/status.h"

#include <system_error>

namespace freescale {

Status Status::from_errno(std::string_view what, int error) {
  return system(std::string(what) + ": " + std::generic_category().message(error));
}

}  // namespace freescale
