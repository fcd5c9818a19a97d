#pragma once

namespace fake_cudart {

// The mangled name of a kernel by what the host launches it with.
const char* name_of_kernel(const void* function);

}  // namespace fake_cudart
