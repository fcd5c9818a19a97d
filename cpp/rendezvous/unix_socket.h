#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"

namespace freescale {

// Unix sockets of type SEQPACKET: whole messages with file descriptors, between processes of one
// host. Names live in the abstract namespace, so no file is ever left behind; who connects is
// checked by the kernel's credentials.

// Listens under a fresh random name, which is returned in `*name`.
Result<UniqueFd> listen_unix(std::string* name);
// An error says what failed; the deadline bounds all waiting.
Result<UniqueFd> connect_unix(const std::string& name, Deadline deadline);

struct PeerCredentials {
  pid_t pid = 0;  // 0 when the process is not visible in this pid namespace
  uid_t uid = 0;
};
Result<PeerCredentials> peer_credentials(int socket);

// A descriptor that becomes readable when the process ends; invalid where pids cannot be watched.
UniqueFd open_pidfd(pid_t pid);

struct SocketMessage {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;
};
// Waits until the deadline for a peer that takes no more.
Status send_message(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                    Deadline deadline = Deadline::at(0));
// Receives one message of at most `max_bytes` and 4 descriptors. Waits until the deadline.
Result<SocketMessage> receive_message(int socket, size_t max_bytes, Deadline deadline);

}  // namespace freescale
