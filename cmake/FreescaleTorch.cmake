# Finds the installed torch without importing it, as the target freescale_torch.
#
# find_package(Torch) is avoided: in CUDA builds of torch it wants a whole CUDA toolkit. One binary
# serves the CPU and CUDA builds of a torch minor version, so no CUDA header or library is used.

set(FREESCALE_TORCH_MINIMUM 2.11)
set(FREESCALE_TORCH_BELOW 2.15)

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/locate_torch.py"
  OUTPUT_VARIABLE torch_facts
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE locate_result)
if(NOT locate_result EQUAL 0)
  message(FATAL_ERROR "torch was not found by ${Python_EXECUTABLE}; install it first.")
endif()
list(GET torch_facts 0 torch_dir)
list(GET torch_facts 1 torch_version)
list(GET torch_facts 2 torch_cxx11_abi)

# CMake compares release numbers only: drop the local part (2.13.0+cpu) and pre-release letters.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" torch_minor "${torch_version}")
if(torch_minor VERSION_LESS FREESCALE_TORCH_MINIMUM
   OR torch_minor VERSION_GREATER_EQUAL FREESCALE_TORCH_BELOW)
  message(FATAL_ERROR
    "freescale_pg supports torch >=${FREESCALE_TORCH_MINIMUM},<${FREESCALE_TORCH_BELOW}; "
    "${torch_dir} holds ${torch_version}.")
endif()

# A pybind11 other than torch's own has other internals, and then base classes such as
# c10d::Backend::Options are unknown at import. So the bundled copy must be the one found.
set(torch_include "${torch_dir}/include")
foreach(header pybind11/pybind11.h torch/csrc/distributed/c10d/Backend.hpp)
  if(NOT EXISTS "${torch_include}/${header}")
    message(FATAL_ERROR "torch ${torch_version} lacks ${torch_include}/${header}.")
  endif()
endforeach()

add_library(freescale_torch INTERFACE)
target_include_directories(freescale_torch SYSTEM INTERFACE
  "${torch_include}" "${torch_include}/torch/csrc/api/include")
target_compile_definitions(freescale_torch INTERFACE
  USE_DISTRIBUTED USE_C10D _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})
foreach(library c10 torch_cpu torch_python)
  target_link_libraries(freescale_torch INTERFACE "${torch_dir}/lib/lib${library}.so")
endforeach()

message(STATUS "torch ${torch_version} in ${torch_dir} (C++11 ABI ${torch_cxx11_abi})")
