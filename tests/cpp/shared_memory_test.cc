#include "cpp/transport/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/cpp/check.h"

namespace freescale {
namespace {

constexpr size_t kBytes = 1 << 20;

UniqueFd memfd(size_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(fd.valid());
  CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) CHECK_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(shared_memory_is_zeroed_reserved_and_shared) {
  Result<SharedMemory> created = SharedMemory::create("test", kBytes);
  CHECK_OK(created);
  SharedMemory& mine = created.value();
  CHECK_EQ(mine.bytes(), kBytes);
  for (size_t i = 0; i < kBytes; ++i) CHECK_EQ(mine.data()[i], std::byte{0});

  Result<SharedMemory> opened = SharedMemory::open(UniqueFd(dup(mine.fd())), kBytes);
  CHECK_OK(opened);
  CHECK(opened.value().data() != mine.data());
  mine.data()[kBytes - 1] = std::byte{42};
  CHECK_EQ(opened.value().data()[kBytes - 1], std::byte{42});
  opened.value().data()[0] = std::byte{43};
  CHECK_EQ(mine.data()[0], std::byte{43});
}

TEST(shared_memory_cannot_change_its_size) {
  Result<SharedMemory> created = SharedMemory::create("test", kBytes);
  CHECK_OK(created);
  for (off_t bytes : {off_t{0}, off_t{kBytes / 2}, off_t{kBytes * 2}}) {
    CHECK_EQ(ftruncate(created.value().fd(), bytes), -1);
    CHECK_EQ(errno, EPERM);
  }
  CHECK_EQ(fcntl(created.value().fd(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(shared_memory_outlives_its_descriptor_and_its_creator) {
  Result<SharedMemory> created = SharedMemory::create("test", kBytes);
  CHECK_OK(created);
  Result<SharedMemory> opened = SharedMemory::open(UniqueFd(dup(created.value().fd())), kBytes);
  CHECK_OK(opened);
  created.value().data()[5] = std::byte{9};
  {
    const SharedMemory gone = std::move(created.value());
  }
  opened.value().close_fd();
  CHECK_EQ(opened.value().fd(), -1);
  CHECK_EQ(opened.value().data()[5], std::byte{9});
}

void expect_refused(UniqueFd fd, const char* why) {
  const Result<SharedMemory> opened = SharedMemory::open(std::move(fd), kBytes);
  CHECK(!opened.ok());
  CHECK_NE(opened.status().message().find(why), std::string::npos);
}

TEST(shared_memory_refuses_what_could_shrink) {
  expect_refused(memfd(kBytes, 0), "not sealed");
  expect_refused(memfd(kBytes, F_SEAL_GROW), "not sealed");
}

TEST(shared_memory_refuses_other_sizes) {
  expect_refused(memfd(kBytes / 2, F_SEAL_SHRINK), "524288 bytes, expected 1048576");
  expect_refused(memfd(0, F_SEAL_SHRINK), "0 bytes, expected 1048576");
}

TEST(shared_memory_refuses_what_is_no_memory) {
  int pipe_fds[2];
  CHECK_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  UniqueFd other_end(pipe_fds[1]);
  expect_refused(UniqueFd(pipe_fds[0]), "not sealed");
  expect_refused(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), "not sealed");
  expect_refused(UniqueFd(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "not sealed");
  expect_refused(UniqueFd(), "fstat");
  // Sealed against writing: mapping it for both ways fails.
  expect_refused(memfd(kBytes, F_SEAL_SHRINK | F_SEAL_WRITE), "mapping 1048576 bytes");
}

// Runs `body` in a child and returns its exit status.
template <typename Body>
int status_of_child(Body body) {
  const pid_t child = fork();
  CHECK_GE(child, 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(shared_memory_without_descriptors_is_an_error) {
  CHECK_EQ(status_of_child([] {
             const rlimit none{0, 0};
             CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
             const Result<SharedMemory> created = SharedMemory::create("test", kBytes);
             CHECK(!created.ok());
             CHECK_EQ(created.status().code(), StatusCode::kSystem);
             CHECK_NE(created.status().message().find("memfd_create"), std::string::npos);
           }),
           0);
}

TEST(shared_memory_without_address_space_is_an_error) {
  CHECK_EQ(status_of_child([] {
             const rlimit little{1 << 20, 1 << 20};
             CHECK_EQ(setrlimit(RLIMIT_AS, &little), 0);
             const Result<SharedMemory> created = SharedMemory::create("test", kBytes);
             CHECK(!created.ok());
             CHECK_EQ(created.status().code(), StatusCode::kSystem);
             CHECK_NE(created.status().message().find("mapping 1048576 bytes"), std::string::npos);
           }),
           0);
}

}  // namespace
}  // namespace freescale
