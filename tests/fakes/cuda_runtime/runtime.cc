#include "tests/fakes/cuda_runtime/runtime.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

namespace fake_cudart {

using namespace freescale::cuda;  // NOLINT: the driver's names

const Below* Below::get() {
  // Leaked: streams and threads of torch may still make calls while the process ends.
  static const Below* const below = []() -> const Below* {
    const auto driver = Driver::get();
    if (driver.ok()) return new Below(*driver.value());
    std::fprintf(stderr, "stand-in CUDA runtime: %s\n", driver.status().message().c_str());
    return nullptr;
  }();
  return below;
}

Below::Below(const Driver& driver) : driver_(&driver) {
  // The library is loaded: this is the driver's own.
  void* library = dlopen(std::getenv("FREESCALE_CUDA_DRIVER"), RTLD_NOW | RTLD_LOCAL);
  get_proc_address_ = reinterpret_cast<GetProcAddress*>(dlsym(library, "cuGetProcAddress_v2"));
#define FAKE_CUDART_RESOLVE(member, name, version, arguments) \
  member = reinterpret_cast<decltype(member)>(find(#name, version));
  FAKE_CUDA_RUNTIME_CALLS(FAKE_CUDART_RESOLVE)
#undef FAKE_CUDART_RESOLVE
}

void* Below::find(const char* name, int version) const {
  void* entry = nullptr;
  ProcAddressStatus status = ProcAddressStatus::kSuccess;
  get_proc_address_(name, &entry, version, kProcAddressLegacyStream, &status);
  return entry;
}

Code make_current(const Below& below, int device) {
  static std::mutex mutex;
  static auto* const contexts = new std::map<int, Context>();
  const std::lock_guard lock(mutex);
  Context& context = (*contexts)[device];
  if (context == nullptr) {
    const Code code = below.driver().device_primary_ctx_retain.code(&context, device);
    if (code != Code::kSuccess) return code;
  }
  return below.driver().ctx_set_current.code(context);
}

Code make_any_current(const Below& below) {
  Context current = nullptr;
  const Code code = below.driver().ctx_get_current.code(&current);
  return code != Code::kSuccess || current != nullptr ? code : make_current(below, 0);
}

}  // namespace fake_cudart
