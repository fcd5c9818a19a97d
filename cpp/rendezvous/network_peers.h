#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/rendezvous/connected_peer.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/rendezvous/tcp_listeners.h"
#include "cpp/transport/ucx/network.h"

namespace freescale {

// Two processes of different hosts agree on a link over the network:
//   connector: Hello   (secret, its address and the name of its end)
//   acceptor : Welcome (secret, the name of its end)
//   connector: Ready   (secret)
// each as bytes of the link itself, so that both ends have seen them go both ways before it is
// used.
//
// The network may not be there yet. Then the connector begins anew, with a link of another name, so
// that whatever still comes of an attempt that was given up finds nobody. The acceptor keeps what
// each Hello has opened until one Ready says which of them counts.

// Where a process can be reached, as others read it in the store.
struct NetworkAddress {
  std::string version;                     // of UCX
  std::string host;                        // its name, for messages
  std::string worker;                      // UCX's address
  uint64_t place = 0;                      // equal for processes to which an address means the same
  std::set<SocketAddress> listeners = {};  // UCX's, to find out whether the process lives

  std::string encode() const;
  static Result<NetworkAddress> decode(std::string_view text);
};

// What two members who are to be connected tell each other in the store of their group.
struct Noticeboard {
  // Where this process is; the last one counts.
  std::function<Status(const NetworkAddress&)> publish;
  // Where the peer is; waits for it until the deadline.
  std::function<Result<NetworkAddress>(Deadline)> find;
  // Not ok once the peer has said that it will not come.
  std::function<Status()> hope;
};

class NetworkPeers {
 public:
  // `on_peer` gets those who have connected, on a thread of the network.
  static Result<std::unique_ptr<NetworkPeers>> create(const Endpoint& self,
                                                      ucx::NetworkOptions options,
                                                      ucx::Wakers wakers,
                                                      std::function<void(ConnectedPeer)> on_peer);

  NetworkAddress address() const;

  // Runs the connector's side, as often as it takes. Ends without a link at the deadline, when the
  // peer has died or will not come, or when there was no way to it for NetworkOptions::unreachable.
  Result<ConnectedPeer> connect(const Endpoint& peer, const Noticeboard& board, Deadline deadline);

  // For who has waited in vain: kPeerLost if the peer has died, kTimedOut if it does not answer.
  // If this host has an interface that it had not when UCX last looked, this process is reachable
  // there, too, and says so.
  Status look_for_peer(const Noticeboard& board);

 private:
  struct Greeting;
  // UCX looks at the interfaces once. So there is another one of these for each time when there
  // were more; all are kept, as there may be links of each.
  struct Presence {
    std::set<std::string> interfaces;
    std::set<SocketAddress> listeners;
    std::unique_ptr<ucx::Network> network;
  };
  struct Meeting {
    std::shared_ptr<ucx::UcxLink> link;
    ucx::Network* network = nullptr;
    EngineId engine{};
    Secret welcome{};       // the connector's: what the answer has to have
    bool answered = false;  // likewise: it has come
  };

  NetworkPeers(const Endpoint& self, uint64_t place, ucx::NetworkOptions options,
               ucx::Wakers wakers, std::function<void(ConnectedPeer)> on_peer)
      : self_(self),
        place_(place),
        options_(std::move(options)),
        wakers_(std::move(wakers)),
        on_peer_(std::move(on_peer)) {}
  Status appear();
  bool has_new_interface() const;
  const Presence& newest() const;

  Result<ConnectedPeer> try_to_connect(const Endpoint& peer, const NetworkAddress& address,
                                       Deadline deadline, const std::function<Status()>& hope);
  Status await_welcome(const std::shared_ptr<ucx::UcxLink>& link, Deadline deadline,
                       const std::function<Status()>& hope);
  Status greet(const Meeting& meeting, uint32_t kind, const Secret& secret, uint64_t to_key);
  Status located(const NetworkAddress& address, const Status& why) const;
  ConnectedPeer make_peer(const Meeting& meeting) const;

  void on_handshake(ucx::Network& network, const std::vector<std::byte>& message);
  void on_hello(ucx::Network& network, const Greeting& greeting, const std::string& address);
  void on_welcome(const Greeting& greeting);
  void on_ready(const Greeting& greeting);

  const Endpoint self_;
  const uint64_t place_;  // see NetworkAddress
  const ucx::NetworkOptions options_;
  const ucx::Wakers wakers_;
  const std::function<void(ConnectedPeer)> on_peer_;
  std::mutex appear_mutex_;   // one appears at a time
  mutable std::mutex mutex_;  // guards the next three
  std::condition_variable changed_;
  // By the key of this side's end. None is dropped for being slow: a connector that has got its
  // Welcome counts on the link.
  std::map<uint64_t, Meeting> meetings_;
  std::vector<std::unique_ptr<Presence>> presences_;  // last: their threads use the rest
};

}  // namespace freescale
