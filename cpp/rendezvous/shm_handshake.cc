#include "cpp/rendezvous/shm_handshake.h"

#include <cerrno>
#include <cstring>

#include "cpp/base/random.h"
#include "cpp/rendezvous/shm_handshake_messages.h"

namespace freescale {
namespace {

constexpr size_t kProbeHalf = kProbeBytes / 2;

// Read by peers with process_vm_readv to prove that they can.
const uint64_t g_pull_word = random_u64();

template <typename T>
std::span<const std::byte> bytes_of(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

template <typename T>
Result<T> parse(const SocketMessage& message, size_t fds, const char* what) {
  T parsed{};
  if (message.bytes.size() != sizeof(T) || message.fds.size() != fds) {
    return Status::invalid_argument(std::string("a malformed ") + what + " of " +
                                    std::to_string(message.bytes.size()) + " bytes");
  }
  std::memcpy(&parsed, message.bytes.data(), sizeof(T));
  if (parsed.magic != kHandshakeMagic) {
    return Status::invalid_argument(std::string("a ") + what + " of another protocol version");
  }
  return parsed;
}

std::byte* probe_area(const SharedMemory& memory, bool connector) {
  return memory.data() + memory.bytes() - kProbeBytes + (connector ? 0 : kProbeHalf);
}

uint64_t write_probe(const SharedMemory& memory, bool connector) {
  const uint64_t probe = random_u64();
  std::memcpy(probe_area(memory, connector), &probe, sizeof(probe));
  return probe;
}

uint64_t read_probe(const SharedMemory& memory, bool connector) {
  uint64_t probe = 0;
  std::memcpy(&probe, probe_area(memory, connector), sizeof(probe));
  return probe;
}

bool pull_works(pid_t pid, uint64_t address, uint64_t expected, std::string* why) {
  uint64_t seen = 0;
  if (pid <= 0) {
    *why = "direct reads: the peer's pid is not visible here";
    return false;
  }
  const Status status =
      read_process_memory(pid, address, reinterpret_cast<std::byte*>(&seen), sizeof(seen));
  if (!status.ok()) {
    *why = "direct reads refused: " + status.message();
    return false;
  }
  *why = seen == expected ? "direct reads proven" : "direct reads returned other bytes";
  return seen == expected;
}

Result<PeerCredentials> checked_credentials(int socket) {
  Result<PeerCredentials> peer = peer_credentials(socket);
  if (peer.ok() && peer.value().uid != geteuid()) {
    return Status::invalid_argument("the peer runs as uid " + std::to_string(peer.value().uid) +
                                    ", this process as " + std::to_string(geteuid()));
  }
  return peer;
}

ConnectedPeer make_peer(EngineId engine, SharedMemory memory, const ShmGeometry& geometry,
                        bool first, SharedMemory doorbell, ShmPeer found, std::string pull_reason) {
  memory.close_fd();
  doorbell.close_fd();
  ConnectedPeer peer;
  peer.engine = engine;
  peer.pidfd = open_pidfd(found.pid);
  peer.probe = "shared memory proven; " + std::move(pull_reason);
  peer.link =
      std::make_shared<ShmLink>(std::move(memory), geometry, first, std::move(doorbell), found);
  return peer;
}

Result<SocketMessage> await_welcome(int socket, Deadline deadline,
                                    const std::function<Status()>& hope) {
  while (true) {
    const Deadline turn = std::min(deadline, Deadline::after(kLookAgain));
    Result<SocketMessage> answer = receive_message(socket, sizeof(Welcome), turn);
    const bool late = answer.status().code() == StatusCode::kTimedOut;
    if (!late || deadline.passed(now_ns())) return answer;
    if (Status status = hope(); !status.ok()) return status;
  }
}

}  // namespace

Result<ConnectedPeer> connect_shm(const LocalIdentity& self, const Endpoint& peer,
                                  const ShmGeometry& geometry, Deadline deadline,
                                  const std::function<Status()>& hope) {
  Result<UniqueFd> socket = connect_unix(peer.socket, deadline);
  if (!socket.ok()) return socket.status();
  const int fd = socket.value().get();
  Result<PeerCredentials> credentials = checked_credentials(fd);
  if (!credentials.ok()) return credentials.status();
  Result<SharedMemory> memory =
      SharedMemory::create("freescale-link", geometry.link_bytes() + kProbeBytes);
  if (!memory.ok()) return memory.status();

  const Hello hello{kHandshakeMagic,
                    self.endpoint.engine,
                    peer.knock,
                    geometry,
                    write_probe(memory.value(), true),
                    reinterpret_cast<uint64_t>(&g_pull_word),
                    g_pull_word};
  const int fds[] = {memory.value().fd(), self.doorbell->fd()};
  if (Status sent = send_message(fd, bytes_of(hello), fds); !sent.ok()) return sent;
  Result<SocketMessage> answer = await_welcome(fd, deadline, hope);
  if (!answer.ok()) return answer.status();
  Result<Welcome> welcome = parse<Welcome>(answer.value(), 1, "Welcome");
  if (!welcome.ok()) return welcome.status();
  if (welcome.value().welcome != peer.welcome || welcome.value().probe_seen != hello.probe ||
      read_probe(memory.value(), false) != welcome.value().probe) {
    return Status::invalid_argument("the peer did not prove that it shares the memory");
  }
  Result<SharedMemory> doorbell =
      SharedMemory::open(std::move(answer.value().fds[0]), kDoorbellBytes);
  if (!doorbell.ok()) return doorbell.status();

  std::string reason;
  ShmPeer found{credentials.value().pid, false};
  found.can_pull =
      pull_works(found.pid, welcome.value().pull_address, welcome.value().pull_expected, &reason);
  const Ready ready{kHandshakeMagic, welcome.value().probe};
  if (Status sent = send_message(fd, bytes_of(ready), {}); !sent.ok()) return sent;
  ConnectedPeer connected = make_peer(peer.engine, std::move(memory.value()), geometry, true,
                                      std::move(doorbell.value()), found, std::move(reason));
  connected.socket = std::make_shared<UniqueFd>(std::move(socket.value()));
  return connected;
}

Result<std::optional<ConnectedPeer>> ShmAcceptor::on_readable(const LocalIdentity& self) {
  Result<SocketMessage> message = receive_message(socket_.get(), sizeof(Hello), Deadline::at(0));
  // Readable no more: waiting here would hold up all others.
  if (message.status().code() == StatusCode::kTimedOut) return std::optional<ConnectedPeer>();
  if (!message.ok()) return message.status();
  if (!peer_.has_value()) {
    if (Status status = answer_hello(self, std::move(message.value())); !status.ok()) return status;
    return std::optional<ConnectedPeer>();
  }
  Result<Ready> ready = parse<Ready>(message.value(), 0, "Ready");
  if (!ready.ok()) return ready.status();
  if (ready.value().probe_seen != probe_) {
    return Status::invalid_argument("the connecting process does not see what this one wrote");
  }
  peer_->socket = std::make_shared<UniqueFd>(std::move(socket_));
  return std::move(peer_);
}

Status ShmAcceptor::answer_hello(const LocalIdentity& self, SocketMessage message) {
  Result<Hello> parsed = parse<Hello>(message, 2, "Hello");
  if (!parsed.ok()) return parsed.status();
  const Hello& hello = parsed.value();
  Result<PeerCredentials> credentials = checked_credentials(socket_.get());
  if (!credentials.ok()) return credentials.status();
  if (hello.knock != self.endpoint.knock) {
    return Status::invalid_argument("a process that is not a member of this job connected");
  }
  if (!hello.geometry.valid()) return Status::invalid_argument("a link of impossible size");
  Result<SharedMemory> memory =
      SharedMemory::open(std::move(message.fds[0]), hello.geometry.link_bytes() + kProbeBytes);
  if (!memory.ok()) return memory.status();
  Result<SharedMemory> doorbell = SharedMemory::open(std::move(message.fds[1]), kDoorbellBytes);
  if (!doorbell.ok()) return doorbell.status();
  const uint64_t seen = read_probe(memory.value(), true);
  if (seen != hello.probe) return Status::invalid_argument("the memory holds other bytes");

  std::string reason;
  ShmPeer found{credentials.value().pid, false};
  found.can_pull = pull_works(found.pid, hello.pull_address, hello.pull_expected, &reason);
  probe_ = write_probe(memory.value(), false);
  const Welcome welcome{kHandshakeMagic,
                        self.endpoint.welcome,
                        seen,
                        probe_,
                        reinterpret_cast<uint64_t>(&g_pull_word),
                        g_pull_word};
  const int fds[] = {self.doorbell->fd()};
  if (Status sent = send_message(socket_.get(), bytes_of(welcome), fds); !sent.ok()) return sent;
  peer_ = make_peer(hello.engine, std::move(memory.value()), hello.geometry, false,
                    std::move(doorbell.value()), found, std::move(reason));
  return {};
}

}  // namespace freescale
