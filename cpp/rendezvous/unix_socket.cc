#include "cpp/rendezvous/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>

#include "cpp/base/random.h"

namespace freescale {
namespace {

constexpr size_t kMaxFds = 4;

Status closed_by_the_other_end() {
  return Status::peer_lost("the other end closed the Unix socket");
}

struct Address {
  sockaddr_un raw{};
  socklen_t bytes = 0;
};

// An abstract name starts with a zero byte and needs no file.
Address abstract_address(const std::string& name) {
  Address address;
  address.raw.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.raw.sun_path) - 1);
  std::memcpy(address.raw.sun_path + 1, name.data(), length);
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

Result<UniqueFd> make_socket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::from_errno("creating a Unix socket", errno);
  return fd;
}

int poll_timeout_ms(Deadline deadline) {
  if (deadline.is_never()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
  return static_cast<int>(std::min<int64_t>(left, std::numeric_limits<int>::max()));
}

Status wait_for(int socket, short event, const char* what, Deadline deadline) {
  pollfd waited{socket, event, 0};
  while (true) {
    const int ready = poll(&waited, 1, poll_timeout_ms(deadline));
    if (ready > 0) return {};
    if (ready == 0) return Status::timed_out(std::string("Timed out waiting for ") + what);
    if (errno != EINTR) return Status::from_errno("polling a Unix socket", errno);
  }
}

void take_descriptors(msghdr& header, std::vector<UniqueFd>* fds) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds->emplace_back(fd);
    }
  }
}

}  // namespace

Result<UniqueFd> listen_unix(std::string* name) {
  Result<UniqueFd> fd = make_socket();
  if (!fd.ok()) return fd;
  char text[64];
  std::snprintf(text, sizeof(text), "freescale-%016llx%016llx",
                static_cast<unsigned long long>(random_u64()),
                static_cast<unsigned long long>(random_u64()));
  *name = text;
  const Address address = abstract_address(*name);
  if (bind(fd.value().get(), reinterpret_cast<const sockaddr*>(&address.raw), address.bytes) != 0) {
    return Status::from_errno("binding a Unix socket", errno);
  }
  if (listen(fd.value().get(), SOMAXCONN) != 0) {
    return Status::from_errno("listening on a Unix socket", errno);
  }
  return fd;
}

Result<UniqueFd> connect_unix(const std::string& name, Deadline deadline) {
  Result<UniqueFd> fd = make_socket();
  if (!fd.ok()) return fd;
  const Address address = abstract_address(name);
  while (connect(fd.value().get(), reinterpret_cast<const sockaddr*>(&address.raw),
                 address.bytes) != 0) {
    const int error = errno;
    if (error == ECONNREFUSED) {
      return Status::peer_lost("nobody listens at its socket any more: its process has ended");
    }
    // EAGAIN: the backlog is full; a Unix socket offers nothing to poll for that.
    if (error != EAGAIN && error != EINTR) {
      return Status::from_errno("connecting to a Unix socket", error);
    }
    if (deadline.passed(now_ns())) {
      return Status::timed_out("Timed out connecting to a Unix socket, whose backlog is full");
    }
    usleep(1000);
  }
  return fd;
}

Result<PeerCredentials> peer_credentials(int socket) {
  ucred raw{};
  socklen_t bytes = sizeof(raw);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &raw, &bytes) != 0) {
    return Status::from_errno("reading a peer's credentials", errno);
  }
  return PeerCredentials{raw.pid, raw.uid};
}

UniqueFd open_pidfd(pid_t pid) {
  if (pid <= 0) return {};
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                    Deadline deadline) {
  iovec content{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &content;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
  }
  while (sendmsg(socket, &header, MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET) return closed_by_the_other_end();
    if (errno != EAGAIN) return Status::from_errno("sending on a Unix socket", errno);
    Status status = wait_for(socket, POLLOUT, "a peer that reads its Unix socket", deadline);
    if (!status.ok()) return status;
  }
  return {};
}

Result<SocketMessage> receive_message(int socket, size_t max_bytes, Deadline deadline) {
  SocketMessage message;
  message.bytes.resize(max_bytes);
  iovec content{message.bytes.data(), message.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  while (true) {
    msghdr header{};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
    // An empty message looks like the end of the stream, but may have brought descriptors.
    if (got >= 0) take_descriptors(header, &message.fds);
    if (got > 0) {
      if ((header.msg_flags & MSG_CTRUNC) != 0) {
        return Status::system(
            "descriptors on the Unix socket were lost: more than expected, or this process has "
            "reached its limit of open files");
      }
      if ((header.msg_flags & MSG_TRUNC) != 0) {
        return Status::invalid_argument("a message on the Unix socket is longer than expected");
      }
      message.bytes.resize(static_cast<size_t>(got));
      return message;
    }
    // Reset: it closed before it had taken what was sent.
    if (got == 0 || errno == ECONNRESET) {
      return closed_by_the_other_end();
    }
    if (errno == EAGAIN) {
      Status status = wait_for(socket, POLLIN, "an answer on the Unix socket", deadline);
      if (!status.ok()) return status;
    } else if (errno != EINTR) {
      return Status::from_errno("receiving on a Unix socket", errno);
    }
  }
}

}  // namespace freescale
