#include "tests/gpu/driver_entry.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "tests/gpu/finding.h"

namespace freescale::probe {
namespace {

void* library() {
  const char* path = std::getenv("FREESCALE_CUDA_DRIVER");
  const bool given = path != nullptr && *path != '\0';
  void* const library = dlopen(given ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) give_up("no CUDA driver");
  return library;
}

}  // namespace

void* find_driver_entry(const char* name) { return dlsym(library(), name); }

void* require_driver_entry(const char* name) {
  void* const entry = find_driver_entry(name);
  if (entry == nullptr) give_up(std::string("the CUDA driver has no ") + name);
  return entry;
}

bool is_stand_in() { return find_driver_entry("fake_cuda_launch_kernel") != nullptr; }

void check(std::string_view call, cuda::Code code) {
  if (code == cuda::Code::kSuccess) return;
  give_up(std::string(call) + ": error " + std::to_string(static_cast<int>(code)));
}

}  // namespace freescale::probe
