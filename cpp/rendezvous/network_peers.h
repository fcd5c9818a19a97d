#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/rendezvous/connected_peer.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/transport/ucx/network.h"

namespace freescale {

// Two processes of different hosts agree on a link over the network:
//   connector: Hello   (secret, its address and the name of its end)
//   acceptor : Welcome (secret, the name of its end)
//   connector: Ready   (secret)
// each as bytes of the link itself, so that both ends have seen them go both ways before it is
// used.

// Where a process can be reached, as others read it in the store.
struct NetworkAddress {
  std::string version;  // of UCX
  std::string host;     // its name, for messages
  std::string worker;   // UCX's address

  std::string encode() const;
  static Result<NetworkAddress> decode(std::string_view text);
};

class NetworkPeers {
 public:
  // `on_peer` gets those who have connected, on a thread of the network.
  static Result<std::unique_ptr<NetworkPeers>> create(const Endpoint& self,
                                                      ucx::NetworkOptions options,
                                                      ucx::Wakers wakers,
                                                      std::function<void(ConnectedPeer)> on_peer);

  NetworkAddress address() const;

  // Runs the connector's side; blocks until the deadline, or until `hope` says that the peer will
  // not answer.
  Result<ConnectedPeer> connect(const Endpoint& peer, const NetworkAddress& address,
                                Deadline deadline, const std::function<Status()>& hope);

  // For who waits for that process to connect: a link that serves for nothing but to fail once the
  // process is gone. Null where there is none. Open to the end, as UCX may have made one connection
  // of it and of the peer's way to here.
  std::shared_ptr<const Link> watch(const NetworkAddress& address);

 private:
  struct Greeting;
  struct Meeting {
    std::shared_ptr<ucx::UcxLink> link;
    EngineId engine{};
    Secret welcome{};       // the connector's: what the answer has to have
    bool answered = false;  // likewise: it has come
  };

  NetworkPeers(const Endpoint& self, std::function<void(ConnectedPeer)> on_peer)
      : self_(self), on_peer_(std::move(on_peer)) {}
  void on_handshake(const std::vector<std::byte>& message);
  void on_hello(const Greeting& greeting, std::string address);
  void on_welcome(const Greeting& greeting);
  void on_ready(const Greeting& greeting);
  Result<std::shared_ptr<ucx::UcxLink>> open_link(const NetworkAddress& address);
  Status greet(ucx::UcxLink& link, uint32_t kind, const Secret& secret, uint64_t to_key);
  ConnectedPeer make_peer(const Meeting& meeting) const;
  Status await_welcome(const std::shared_ptr<ucx::UcxLink>& link, Deadline deadline,
                       const std::function<Status()>& hope);

  const Endpoint self_;
  const std::function<void(ConnectedPeer)> on_peer_;
  std::mutex mutex_;  // guards the next two
  std::condition_variable changed_;
  // By the key of this side's end. None is dropped for being slow: a connector that has got its
  // Welcome counts on the link.
  std::map<uint64_t, Meeting> meetings_;
  std::unique_ptr<ucx::Network> network_;  // last: its thread uses the rest
};

}  // namespace freescale
