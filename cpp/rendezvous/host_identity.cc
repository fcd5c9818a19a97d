#include "cpp/rendezvous/host_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "cpp/base/unique_fd.h"

namespace freescale {
namespace {

// FNV-1a: the same on all hosts, which std::hash need not be.
uint64_t hash(const std::string& text) {
  uint64_t value = 0xcbf29ce484222325u;
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return value;
}

}  // namespace

Result<uint64_t> host_identity(const std::string& name) {
  constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
  char boot[64] = {};
  // Where there is no such file, there is none for the other ranks of this host either.
  const UniqueFd file(open(kBootId, O_RDONLY | O_CLOEXEC));
  if (!file.valid() && errno != ENOENT && errno != EACCES) {
    return Status::from_errno(std::string("reading ") + kBootId, errno);
  }
  if (file.valid() && read(file.get(), boot, sizeof(boot) - 1) < 0) {
    return Status::from_errno(std::string("reading ") + kBootId, errno);
  }
  struct stat network{};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return hash(std::string(boot) + "/" + std::to_string(network.st_ino) + "/" + name);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

}  // namespace freescale
