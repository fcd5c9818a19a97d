#pragma once

#include <string>
#include <string_view>

#include "cpp/base/status.h"

// What a probe tells gpu_check: lines of JSON on stdout (gpu_check/finding.py reads them). Any
// thread, any process of the probe.
namespace freescale::probe {

// What was measured or seen.
void fact(std::string_view name, double value, std::string_view unit);
void fact(std::string_view name, std::string_view value);

// A rule that the design relies on, and whether it holds here.
void expect(std::string_view rule, bool holds);

// The question cannot be asked on this machine. Ends the process.
[[noreturn]] void unavailable(std::string_view why);
// The probe itself failed, which answers nothing. Ends the process.
[[noreturn]] void give_up(std::string_view why);

inline void require(const Status& status) {
  if (!status.ok()) give_up(status.message());
}
template <typename T>
T require(Result<T> result) {
  if (!result.ok()) give_up(result.status().message());
  return std::move(result.value());
}

}  // namespace freescale::probe
