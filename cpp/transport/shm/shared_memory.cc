#include "cpp/transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace freescale {
namespace {

Result<std::byte*> map_shared(int fd, size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) {
    return Status::from_errno("mapping " + std::to_string(bytes) + " bytes of shared memory",
                              errno);
  }
  return static_cast<std::byte*>(address);
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<SharedMemory> SharedMemory::create(const char* name, size_t bytes) {
  SharedMemory memory;
  memory.fd_ = UniqueFd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.fd_.valid()) return Status::from_errno("memfd_create", errno);
  int error = 0;
  do {
    error = posix_fallocate(memory.fd(), 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) {
    return Status::from_errno("reserving " + std::to_string(bytes) + " bytes of shared memory",
                              error);
  }
  if (fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Status::from_errno("sealing shared memory", errno);
  }
  Result<std::byte*> mapped = map_shared(memory.fd(), bytes);
  if (!mapped.ok()) return mapped.status();
  memory.data_ = mapped.value();
  memory.bytes_ = bytes;
  return memory;
}

Result<SharedMemory> SharedMemory::open(UniqueFd fd, size_t bytes) {
  struct stat info{};
  if (fstat(fd.get(), &info) != 0) return Status::from_errno("fstat of a peer's memory", errno);
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status::invalid_argument("the peer's shared memory is not sealed against shrinking");
  }
  if (static_cast<size_t>(info.st_size) != bytes) {
    return Status::invalid_argument("the peer's shared memory has " + std::to_string(info.st_size) +
                                    " bytes, expected " + std::to_string(bytes));
  }
  Result<std::byte*> mapped = map_shared(fd.get(), bytes);
  if (!mapped.ok()) return mapped.status();
  SharedMemory memory;
  memory.fd_ = std::move(fd);
  memory.data_ = mapped.value();
  memory.bytes_ = bytes;
  return memory;
}

}  // namespace freescale
