#pragma once

#include <sys/types.h>

#include <cstdint>

#include "cpp/base/unique_fd.h"
#include "cpp/device/cuda_types.h"

namespace fake_cuda {

// What a handle for other processes says of memory or an event: where its descriptor is. It is
// found through the exporter's descriptors, so that must live, and both be the same user.
struct Exported {
  uint64_t magic;
  pid_t process;
  int descriptor;
  uint64_t inode;

  // `magic` tells kinds of handles apart.
  static Exported describe(int descriptor, uint64_t magic);
  // `fd` becomes a descriptor of this process, or the call returns the reason why not.
  freescale::cuda::Code open(uint64_t expected_magic, freescale::UniqueFd* fd) const;
};

}  // namespace fake_cuda
