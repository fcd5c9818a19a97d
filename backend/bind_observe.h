#pragma once

#include <pybind11/pybind11.h>

namespace freescale {

// Adds what freescale_pg.observe looks at this rank with.
void bind_observe(pybind11::module_& module);

}  // namespace freescale
