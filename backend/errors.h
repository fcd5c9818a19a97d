#pragma once

#include <cstdint>
#include <exception>
#include <iosfwd>
#include <string>

#include "cpp/base/status.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// Which call of which operation: the beginning of every error message.
struct CallSite {
  int rank = 0;
  OpKind op = OpKind::kNone;
  uint64_t sequence = 0;  // 0: point-to-point, which has no number shared by the ranks
};

// "freescale: rank 1: all_to_all_single #12: "
std::ostream& operator<<(std::ostream& stream, const CallSite& site);

// A group of the parent process cannot be used in a forked child.
Status forked_status(const CallSite& site);

// The exception that `status`, which is not ok, becomes in Python: ValueError for the caller's own
// arguments, torch.distributed.DistBackendError for all that goes wrong between the ranks.
std::exception_ptr make_exception(const Status& status);
[[noreturn]] void throw_status(const Status& status);

// The text of an exception, without torch's C++ stack.
std::string exception_text(const std::exception& error);

}  // namespace freescale
