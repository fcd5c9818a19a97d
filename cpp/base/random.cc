#include "cpp/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

namespace freescale {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) std::abort();  // cannot happen since Linux 3.17
    if (got > 0) bytes = bytes.subspan(static_cast<size_t>(got));
  }
}

uint64_t random_u64() {
  uint64_t value = 0;
  fill_random(std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace freescale
