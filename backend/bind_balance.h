#pragma once

#include <pybind11/pybind11.h>

namespace freescale {

// Adds the functions of cpp/balance/ to the module. They know nothing of torch.
void bind_balance(pybind11::module_& module);

}  // namespace freescale
