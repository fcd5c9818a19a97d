#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpp/base/status.h"
#include "cpp/transport/ucx/ucx_link.h"
#include "cpp/transport/ucx/worker.h"

namespace freescale::ucx {

struct NetworkOptions {
  std::vector<std::string> libraries;  // where else to look for UCX, see UcpLibrary
  std::string interfaces;              // see read_settings(); empty: UCX chooses
  // How often a peer is told that this process lives, where nothing else is sent; it is lost when
  // it was not heard for three times as long.
  std::chrono::nanoseconds heartbeat = std::chrono::seconds(5);
  // For how long a network that does not lead to a peer may be one that comes up yet. As long as
  // NCCL tries to connect: NCCL_SOCKET_RETRY_CNT, 34 times, each 100 ms later than the one before.
  std::chrono::nanoseconds unreachable = std::chrono::seconds(60);
};

// This process in the network: its worker and the links over it. Keeps links alive by heartbeats,
// as UCX misses a process that is stopped.
class Network : private MessageSink {
 public:
  // Hears what strangers send to key 0 of this process, on the worker's thread, without a lock.
  using HandshakeHandler = std::function<void(std::vector<std::byte> message)>;

  static Result<std::unique_ptr<Network>> create(NetworkOptions options, Wakers wakers,
                                                 HandshakeHandler on_handshake);
  // Hangs up on all peers, once they have what was sent to them; waits 5 s at most.
  ~Network() override;

  // Nothing is received before.
  Status start() { return worker_->start(); }

  const std::string& address() const { return worker_->address(); }
  // Of UCX: "1.22.0".
  const std::string& version() const { return worker_->ucp().version(); }

  // A link to the worker of that address, which nothing is sent over yet. `peer_name` is for
  // messages.
  Result<std::shared_ptr<UcxLink>> open_link(const std::string& address, std::string peer_name);
  // Closes a link that nobody uses, soon, and forgets it.
  void discard(const UcxLink& link);

 private:
  Network(NetworkOptions options, Wakers wakers, HandshakeHandler on_handshake)
      : options_(std::move(options)),
        wakers_(std::move(wakers)),
        on_handshake_(std::move(on_handshake)) {}

  void on_message(std::span<const std::byte> header, ArrivedData& data) override;
  void on_polled() override;
  void service();
  std::vector<std::shared_ptr<UcxLink>> links();
  void close_discarded();

  const NetworkOptions options_;
  const Wakers wakers_;
  const HandshakeHandler on_handshake_;
  std::shared_ptr<Worker> worker_;
  std::vector<std::shared_ptr<UcxLink>> placed_;  // chunks, in this poll; under the worker's lock
  Nanoseconds served_at_ = 0;                     // of the worker's thread
  std::mutex mutex_;  // guards the rest; taken under the worker's lock, so never the other way
  // By key. Kept until the end, or until the worker's thread has closed it: one that went while it
  // is told of a message would be closed by a thread that is inside UCX, and that thread alone
  // sends heartbeats.
  std::map<uint64_t, std::shared_ptr<UcxLink>> links_;
  std::vector<uint64_t> discarded_;
  std::vector<std::vector<std::byte>> handshakes_;
};

}  // namespace freescale::ucx
