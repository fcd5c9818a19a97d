#pragma once

#include <string_view>

#include "cpp/device/cuda_types.h"

// Calls that probes need and the project does not: of the library that cuda::Driver has loaded.
namespace freescale::probe {

// Null if the library has none.
void* find_driver_entry(const char* name);
// Ends the process if the library has none.
void* require_driver_entry(const char* name);

template <typename Function>
Function* driver_entry(const char* name) {
  return reinterpret_cast<Function*>(require_driver_entry(name));
}

// Whether the driver is the project's stand-in, which moves bytes but has no device.
bool is_stand_in();

// Ends the process unless the call has succeeded.
void check(std::string_view call, cuda::Code code);

}  // namespace freescale::probe
