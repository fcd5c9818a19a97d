#include "tests/fakes/cuda_driver/exported.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

namespace fake_cuda {

using freescale::UniqueFd;
using freescale::cuda::Code;

Exported Exported::describe(int descriptor, uint64_t magic) {
  struct stat about{};
  fstat(descriptor, &about);
  return {magic, getpid(), descriptor, about.st_ino};
}

Code Exported::open(uint64_t expected_magic, UniqueFd* fd) const {
  if (magic != expected_magic) return Code::kInvalidHandle;
  if (process == getpid()) return Code::kInvalidContext;
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", process, descriptor);
  *fd = UniqueFd(::open(path, O_RDWR | O_CLOEXEC));
  struct stat about{};
  if (!fd->valid() || fstat(fd->get(), &about) != 0) return Code::kMapFailed;
  // The descriptor is another file's by now: what it led to is gone.
  return about.st_ino == inode ? Code::kSuccess : Code::kInvalidHandle;
}

}  // namespace fake_cuda
