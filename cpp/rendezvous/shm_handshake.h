#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"
#include "cpp/rendezvous/connected_peer.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/rendezvous/unix_socket.h"
#include "cpp/transport/shm/shm_link.h"

namespace freescale {

// Two processes agree on a shared-memory link over a connected Unix socket:
//   connector: Hello   + its memory and doorbell   (secret, sizes, a probe written to the memory)
//   acceptor : Welcome + its doorbell              (secret, the probe read back, one of its own)
//   connector: Ready                               (the acceptor's probe read back)
// So both ends have seen real bytes go both ways through the memory before it is a link. Each also
// tries process_vm_readv on the other (can_pull).

// Of the memory in which others ring for a process.
inline constexpr size_t kDoorbellBytes = 4096;

// What this side presents to others.
struct LocalIdentity {
  Endpoint endpoint;
  const SharedMemory* doorbell = nullptr;
};

// Runs the connector's side; blocks until the deadline, or until `hope` says that the peer will not
// answer.
Result<ConnectedPeer> connect_shm(const LocalIdentity& self, const Endpoint& peer,
                                  const ShmGeometry& geometry, Deadline deadline,
                                  const std::function<Status()>& hope);

// The acceptor's side, one message at a time, so that a silent stranger holds nobody up.
class ShmAcceptor {
 public:
  ShmAcceptor(UniqueFd socket, Deadline deadline)
      : socket_(std::move(socket)), deadline_(deadline) {}

  int socket() const { return socket_.get(); }
  Deadline deadline() const { return deadline_; }

  // Call when the socket is readable. A peer when the handshake is complete, nothing while it goes
  // on, an error when this is not a member of the job or the handshake failed.
  Result<std::optional<ConnectedPeer>> on_readable(const LocalIdentity& self);

 private:
  Status answer_hello(const LocalIdentity& self, SocketMessage message);

  UniqueFd socket_;
  Deadline deadline_;
  std::optional<ConnectedPeer> peer_;  // after a valid Hello
  uint64_t probe_ = 0;                 // what the connector must report in Ready
};

}  // namespace freescale
