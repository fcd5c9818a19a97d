#pragma once

#include <cstddef>

#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"

namespace freescale {

// A memfd mapped into this process: memory without a name in any file system, gone with the last
// process that holds it.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // New memory, zeroed and reserved: with too little memory this fails here and not by SIGBUS at
  // the first touch.
  static Result<SharedMemory> create(const char* name, size_t bytes);
  // Maps what a peer sent. Refused when the file is smaller than `bytes` or could shrink later
  // (which would turn our reads into SIGBUS).
  static Result<SharedMemory> open(UniqueFd fd, size_t bytes);

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  // The mapping stays; the descriptor is needed only to pass it on.
  void close_fd() { fd_.reset(); }

 private:
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace freescale
