#include "backend/errors.h"

#include <ostream>

#include <c10/util/Exception.h>

namespace freescale {
namespace {

const std::string kProject = "freescale: ";

}  // namespace

std::ostream& operator<<(std::ostream& stream, const CallSite& site) {
  stream << kProject << "rank " << site.rank << ": " << op_name(site.op);
  if (site.sequence != 0) stream << " #" << site.sequence;
  return stream << ": ";
}

Status forked_status(const CallSite& site) {
  return Status::system(c10::str(site,
                                 "this process was forked after the group was made, and its links "
                                 "belong to the parent; make the group after the fork"));
}

void throw_status(const Status& status) {
  // The engine's messages begin with the rank.
  const bool is_signed = status.message().rfind(kProject, 0) == 0;
  const std::string text = is_signed ? status.message() : kProject + status.message();
  if (status.code() == StatusCode::kInvalidArgument) throw C10_BUILD_ERROR(ValueError, text);
  throw C10_BUILD_ERROR(DistBackendError, text);
}

std::exception_ptr make_exception(const Status& status) {
  try {
    throw_status(status);
  } catch (...) {
    return std::current_exception();
  }
}

std::string exception_text(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace freescale
