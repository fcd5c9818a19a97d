#pragma once

#include <string_view>

#include <c10/core/ScalarType.h>

namespace freescale {

// torch's name of a dtype as Python prints it, without the "torch.": "float32", "bfloat16". Lives
// as long as the process.
std::string_view dtype_name(c10::ScalarType type);

}  // namespace freescale
