#include "cpp/transport/ucx/ucp_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>

namespace freescale::ucx {
namespace {

constexpr char kVariable[] = "FREESCALE_UCX_LIBRARY";
constexpr char kSystemName[] = "libucp.so.0";

struct Loaded {
  void* library = nullptr;
  std::string tried;  // and what came of it
};

bool try_open(Loaded& loaded, const std::string& name, int flags) {
  // Local: its symbols are nobody else's business.
  loaded.library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (loaded.library != nullptr) return true;
  const char* why = dlerror();
  if ((flags & RTLD_NOLOAD) == 0) {
    loaded.tried += (loaded.tried.empty() ? "" : "; ") + std::string(why != nullptr ? why : name);
  }
  return false;
}

Loaded open_any(const std::vector<std::string>& candidates) {
  Loaded loaded;
  if (const char* named = std::getenv(kVariable); named != nullptr && *named != '\0') {
    try_open(loaded, named, 0);  // or nothing: who names one wants that one
    return loaded;
  }
  if (try_open(loaded, kSystemName, RTLD_NOLOAD) || try_open(loaded, kSystemName, 0)) return loaded;
  for (const std::string& candidate : candidates) {
    if (try_open(loaded, candidate, 0)) return loaded;
  }
  return loaded;
}

}  // namespace

Status UcpLibrary::bind(void* library) {
  std::string missing;
#define FREESCALE_UCP_BIND(function)                                          \
  function = reinterpret_cast<decltype(function)>(dlsym(library, #function)); \
  if (function == nullptr) missing += std::string(" ") + #function;
  FREESCALE_UCP_FUNCTIONS(FREESCALE_UCP_BIND)
#undef FREESCALE_UCP_BIND
  Dl_info info{};
  if (ucp_get_version != nullptr && dladdr(reinterpret_cast<void*>(ucp_get_version), &info) != 0) {
    path_ = info.dli_fname;
  }
  if (!missing.empty()) return Status::system("UCX in " + path_ + " lacks" + missing);
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  version_ = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(release);
  return {};
}

Result<const UcpLibrary*> UcpLibrary::get(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static const UcpLibrary* const* known = nullptr;
  const std::lock_guard lock(mutex);
  if (known != nullptr) return *known;
  const Loaded loaded = open_any(candidates);
  if (loaded.library == nullptr) {
    return Status::system("no UCX was found (" + loaded.tried +
                          "); install UCX, or freescale_pg[ucx], or set " + kVariable);
  }
  auto library = std::unique_ptr<UcpLibrary>(new UcpLibrary());
  if (Status status = library->bind(loaded.library); !status.ok()) return status;
  // Never unloaded: it has threads and handlers of its own.
  known = new const UcpLibrary*(library.release());
  return *known;
}

Status UcpLibrary::error(const char* what, ucs_status_t status) const {
  return Status::system(std::string(what) + ": " + ucs_status_string(status) + " (UCX " + version_ +
                        ")");
}

}  // namespace freescale::ucx
