#pragma once

#include <optional>
#include <string_view>

namespace fake_cuda {

enum class Fault {
  kCopyRefused,   // the call fails with the argument as its code
  kCopyFails,     // the copy fails when it runs, and with it the context
  kCopyGarbled,   // moves other bytes than it should
  kCopySlow,      // takes argument milliseconds longer
  kWaitHung,      // does not see the value until fake_cuda_release_hung
  kWriteLost,     // never reaches the memory
  kIpcDenied,     // opening another process's memory fails with the argument as its code
  kFabricDenied,  // the same, of memory that is named by a fabric handle
};

// Called at each place where the fault could happen. The fault's argument if it does so now.
std::optional<int> occurs(Fault fault);

// The `nth` occurrence from now on, counted from 1. Ends the process for an unknown kind.
void inject(std::string_view kind, int nth, int argument);

}  // namespace fake_cuda
