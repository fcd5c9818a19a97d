#include "cpp/rendezvous/mesh.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "cpp/base/random.h"
#include "cpp/base/service_thread.h"
#include "cpp/base/text.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/rendezvous/host_identity.h"
#include "cpp/rendezvous/network_peers.h"
#include "cpp/rendezvous/shm_handshake.h"

namespace freescale {
namespace {

constexpr auto kHandshakeLimit = std::chrono::seconds(10);
// How often a rank that waits for one of another host asks whether that still is there, which takes
// a connection of its own.
constexpr auto kLookForPeer = std::chrono::seconds(2);
constexpr auto kAcceptRetry = std::chrono::milliseconds(10);
// A rank that cannot accept connections for so long gives up; until then it may get descriptors.
constexpr std::chrono::nanoseconds kTroubleLimit = std::chrono::seconds(1);
// A process that dies hangs up some microseconds before its pidfd tells; longer on a busy machine.
constexpr int kDeathTellsWithinMs = 200;
// All links of a process together stay below this; with more ranks each gets smaller chunks.
constexpr size_t kLinkMemoryBudget = size_t{512} << 20;

ShmGeometry geometry_for(int ranks) {
  ShmGeometry geometry;
  while (geometry.link_bytes() * static_cast<size_t>(ranks) > kLinkMemoryBudget &&
         geometry.chunks.chunk_bytes > (16u << 10)) {
    geometry.chunks.chunk_bytes /= 2;
  }
  return geometry;
}

std::string endpoint_key(int rank) { return "endpoint/" + std::to_string(rank); }
std::string network_key(int rank) { return "network/" + std::to_string(rank); }

// What `rank` has published.
Result<Endpoint> read_endpoint(KeyValueStore& store, int rank, Deadline deadline) {
  Result<std::string> text = store.get(endpoint_key(rank), deadline);
  return text.ok() ? Endpoint::decode(text.value()) : text.status();
}

// Of a rank that has published that it will not come; else ok.
Status refusal_of(KeyValueStore& store, int rank) {
  Status status = read_endpoint(store, rank, Deadline::at(0)).status();
  return status.code() == StatusCode::kCancelled ? status : Status();
}

// Of this rank and one of another host. Who waits for an address learns if it will not come.
Noticeboard noticeboard(KeyValueStore& store, int rank, int peer) {
  Noticeboard board;
  board.hope = [&store, peer] { return refusal_of(store, peer); };
  board.publish = [&store, rank, known = std::string()](const NetworkAddress& address) mutable {
    const std::string text = address.encode();
    if (text == known) return Status();
    known = text;
    return store.set(network_key(rank), text);
  };
  board.find = [&store, peer](Deadline deadline) -> Result<NetworkAddress> {
    while (true) {
      const Deadline turn = std::min(deadline, Deadline::after(kLookAgain));
      Result<std::string> text = store.get(network_key(peer), turn);
      if (text.ok()) return NetworkAddress::decode(text.value());
      if (text.status().code() != StatusCode::kTimedOut) return text.status();
      if (Status refusal = refusal_of(store, peer); !refusal.ok()) return refusal;
      if (deadline.passed(now_ns())) {
        return Status::timed_out("Timed out waiting for its network address");
      }
    }
  };
  return board;
}

// What a peer has said before it was gone tells more than that it is gone.
Status why_unreachable(KeyValueStore& store, int peer, Status found) {
  if (found.code() != StatusCode::kPeerLost) return found;
  const Status refusal = refusal_of(store, peer);
  return refusal.ok() ? found : refusal;
}

Status about_peer(int rank, int peer, const Status& why) {
  return {why.code(), "rank " + std::to_string(rank) + " could not connect to rank " +
                          std::to_string(peer) + ": " + why.message()};
}

// By the order in which they come first.
std::vector<int> number_hosts(const std::vector<Endpoint>& endpoints) {
  std::map<uint64_t, int> numbers;
  std::vector<int> hosts;
  for (const Endpoint& endpoint : endpoints) {
    hosts.push_back(numbers.emplace(endpoint.host, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

// What peers say to each other after the handshake, by its first byte. The goodbye comes before a
// mesh hangs up, so that the peer knows it from a death, and knows it at all while a forked child
// holds a copy of the socket. The next one, when a side no longer trusts the link, has a reason.
// Both are the last words of a side; asides (transport.h) are not.
constexpr char kGoodbye = 'b';
constexpr char kGivenUp = 'g';
constexpr char kAside = 'a';
constexpr size_t kMaxWords = 1 + Link::kAsideBytes;

void send_last_words(const UniqueFd& socket, const std::string& words) {
  static_cast<void>(send_message(socket.get(), std::as_bytes(std::span(words)), {}));
}

// How long who sends an aside waits for a peer that takes none.
constexpr std::chrono::seconds kAsideLimit{10};

Status send_aside(const UniqueFd& socket, std::span<const std::byte> bytes,
                  std::span<const int> fds) {
  if (bytes.size() > Link::kAsideBytes || fds.size() > Link::kAsideFds) {
    return Status::invalid_argument("an aside of " + std::to_string(bytes.size()) + " bytes and " +
                                    std::to_string(fds.size()) + " descriptors is too long");
  }
  std::vector<std::byte> message{static_cast<std::byte>(kAside)};
  message.insert(message.end(), bytes.begin(), bytes.end());
  return send_message(socket.get(), message, fds, Deadline::after(kAsideLimit));
}

std::string text_of(const SocketMessage& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

bool ends(const UniqueFd& pidfd) {
  pollfd waited{pidfd.get(), POLLIN, 0};
  return pidfd.valid() && poll(&waited, 1, kDeathTellsWithinMs) > 0;
}

// Follows the peer's name.
std::string why_gone(const ConnectedPeer& peer, const std::string& words) {
  if (words.empty() && ends(peer.pidfd)) return " has died";
  if (words.empty() || words[0] != kGivenUp) return " closed its end";
  return " has given up the link: " + readable(std::string_view(words).substr(1));
}

}  // namespace

// A call of join().
struct Joining {
  KeyValueStore& store;
  int rank;
  int size;
  Deadline deadline;
};

// One mutex guards the table of peers; only the mesh's thread touches connections that are being
// accepted, so they need none.
class MeshCore {
 public:
  explicit MeshCore(MeshOptions options) : options_(std::move(options)) {}
  Status start();
  ~MeshCore();

  Result<Membership> connect_all(KeyValueStore& store, int rank, int size, Deadline deadline);
  Doorbell& doorbell() { return *reinterpret_cast<Doorbell*>(doorbell_memory_.data()); }

 private:
  Result<std::vector<Endpoint>> exchange_endpoints(KeyValueStore& store, int rank, int size,
                                                   Deadline deadline);
  Result<ConnectedPeer*> reach(const Joining& joining, int peer_rank, const Endpoint& peer);
  Result<ConnectedPeer*> await_connection(const Joining& joining, int peer_rank,
                                          const Endpoint& peer);
  Status look_for(const Endpoint& peer, const Noticeboard& board);
  ConnectedPeer* find_or_wait(const EngineId& engine, Deadline deadline);
  Status add_peer(ConnectedPeer peer);
  Status watch_process(ConnectedPeer& peer);

  bool same_host(const Endpoint& peer) const { return peer.host == self_.endpoint.host; }
  // Makes this process reachable from other hosts.
  Status enter_network(KeyValueStore& store, int rank);
  void note_accept_trouble(Status trouble);
  Status accept_trouble(bool at_once);

  void run();
  void on_event(int fd);
  void accept_all();
  void on_acceptor(int fd);
  void drop_late_acceptors();
  void on_peer_event(int fd);
  void lose(ConnectedPeer& peer, const std::string& last_words);
  int next_timeout_ms() const;
  Status watch(int fd);

  const MeshOptions options_;
  SharedMemory doorbell_memory_;
  LocalIdentity self_;
  UniqueFd listener_;
  UniqueFd epoll_;
  UniqueFd stop_;
  std::map<int, ShmAcceptor> acceptors_;  // by socket; the mesh's thread only
  std::mutex connect_mutex_;              // one connecting thread at a time: no double links
  std::mutex mutex_;                      // guards the four below
  std::condition_variable peer_added_;
  std::map<EngineId, ConnectedPeer> peers_;  // stable, and none is removed
  Status accept_trouble_;                    // why this rank cannot be connected to
  Nanoseconds accept_trouble_since_ = 0;
  std::thread thread_;
  std::mutex network_mutex_;               // guards the making of the next
  std::unique_ptr<NetworkPeers> network_;  // last: its thread adds peers
};

Status MeshCore::start() {
  Result<SharedMemory> doorbell = SharedMemory::create("freescale-doorbell", kDoorbellBytes);
  if (!doorbell.ok()) return doorbell.status();
  doorbell_memory_ = std::move(doorbell.value());
  new (doorbell_memory_.data()) Doorbell();
  Endpoint& endpoint = self_.endpoint;
  for (auto* id : {&endpoint.engine, &endpoint.knock, &endpoint.welcome}) {
    *id = {random_u64(), random_u64()};
  }
  Result<uint64_t> host = host_identity(options_.host);
  if (!host.ok()) return host.status();
  endpoint.host = host.value();
  self_.doorbell = &doorbell_memory_;
  Result<UniqueFd> listener = listen_unix(&endpoint.socket);
  if (!listener.ok()) return listener.status();
  listener_ = std::move(listener.value());
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !stop_.valid()) return Status::from_errno("epoll or eventfd", errno);
  if (Status status = watch(listener_.get()); !status.ok()) return status;
  if (Status status = watch(stop_.get()); !status.ok()) return status;
  try {
    thread_ = start_service_thread("freescale-mesh", [this] { run(); });
  } catch (const std::system_error& error) {
    return Status::from_errno("starting the thread of the mesh", error.code().value());
  }
  return {};
}

MeshCore::~MeshCore() {
  network_.reset();
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof(one)) == sizeof(one)) thread_.join();
  for (const auto& [engine, peer] : peers_) {
    if (peer.socket != nullptr) send_last_words(*peer.socket, {kGoodbye});
  }
}

Status MeshCore::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return Status::from_errno("watching a descriptor", errno);
  }
  return {};
}

Result<std::vector<Endpoint>> MeshCore::exchange_endpoints(KeyValueStore& store, int rank, int size,
                                                           Deadline deadline) {
  Endpoint mine = self_.endpoint;
  mine.group_id = random_u64();
  if (Status status = store.set(endpoint_key(rank), mine.encode()); !status.ok()) return status;
  std::vector<Endpoint> endpoints(size);
  std::vector<int> missing;
  for (int peer = 0; peer < size; ++peer) {
    // Once one is late the others get a short look, so that the error can name all who are missing.
    const Deadline patience =
        missing.empty() ? deadline : Deadline::after(std::chrono::milliseconds(10));
    Result<Endpoint> endpoint = read_endpoint(store, peer, patience);
    if (endpoint.ok()) {
      endpoints[peer] = std::move(endpoint.value());
    } else if (endpoint.status().code() == StatusCode::kTimedOut) {
      missing.push_back(peer);
    } else {
      return about_peer(rank, peer, endpoint.status());
    }
  }
  if (!missing.empty()) {
    return Status::timed_out("rank " + std::to_string(rank) + " Timed out waiting for rank " +
                             rank_list(missing) + " of " + std::to_string(size) +
                             " to join the group");
  }
  return endpoints;
}

Result<Membership> MeshCore::connect_all(KeyValueStore& store, int rank, int size,
                                         Deadline deadline) {
  Result<std::vector<Endpoint>> endpoints = exchange_endpoints(store, rank, size, deadline);
  if (!endpoints.ok()) return endpoints.status();
  const auto is_near = [this](const Endpoint& endpoint) { return same_host(endpoint); };
  if (!std::all_of(endpoints.value().begin(), endpoints.value().end(), is_near)) {
    if (Status status = enter_network(store, rank); !status.ok()) {
      return Status(status.code(), "rank " + std::to_string(rank) +
                                       " has to reach other hosts: " + status.message());
    }
  }
  Membership membership;
  membership.group_id = endpoints.value()[0].group_id;
  membership.hosts = number_hosts(endpoints.value());
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) {
      membership.links.push_back(nullptr);
      membership.reports.push_back({peer, "self", "the own rank"});
      continue;
    }
    Result<ConnectedPeer*> connected =
        reach({store, rank, size, deadline}, peer, endpoints.value()[peer]);
    if (!connected.ok()) {
      return about_peer(rank, peer, why_unreachable(store, peer, connected.status()));
    }
    membership.links.push_back(connected.value()->link);
    // Not by its socket, which the mesh's thread lets go of when the peer is lost.
    const bool near = same_host(endpoints.value()[peer]);
    membership.reports.push_back({peer, near ? "shm" : "ucx", connected.value()->probe});
  }
  return membership;
}

// The side with the smaller id connects, the other one waits for it.
Result<ConnectedPeer*> MeshCore::reach(const Joining& joining, int peer_rank,
                                       const Endpoint& peer) {
  if (peer.engine == self_.endpoint.engine) {
    return Status::invalid_argument("two ranks of the group share one process");
  }
  if (self_.endpoint.engine < peer.engine) {
    std::lock_guard<std::mutex> connecting(connect_mutex_);
    if (ConnectedPeer* known = find_or_wait(peer.engine, Deadline::at(0))) return known;
    KeyValueStore& store = joining.store;
    Result<ConnectedPeer> fresh =
        same_host(peer) ? connect_shm(self_, peer, geometry_for(joining.size), joining.deadline,
                                      [&] { return refusal_of(store, peer_rank); })
                        : network_->connect(peer, noticeboard(store, joining.rank, peer_rank),
                                            joining.deadline);
    if (!fresh.ok()) return fresh.status();
    if (Status status = add_peer(std::move(fresh.value())); !status.ok()) return status;
  }
  return await_connection(joining, peer_rank, peer);
}

// Ends early when the peer, which has this rank in the group, says that it cannot, or has died. Of
// one that dies before it has published where it is in the network nobody can tell.
Result<ConnectedPeer*> MeshCore::await_connection(const Joining& joining, int peer_rank,
                                                  const Endpoint& peer) {
  const Noticeboard board = noticeboard(joining.store, joining.rank, peer_rank);
  Deadline next_look = same_host(peer) ? Deadline::at(0) : Deadline::after(kLookForPeer);
  Status seen;
  while (true) {
    const Deadline turn = std::min(joining.deadline, Deadline::after(kLookAgain));
    if (ConnectedPeer* known = find_or_wait(peer.engine, turn)) return known;
    const Status refusal = board.hope();
    // This rank's own trouble may be why the peer gave up.
    if (Status trouble = accept_trouble(!refusal.ok()); !trouble.ok()) return trouble;
    if (!refusal.ok()) return refusal;
    const bool late = joining.deadline.passed(now_ns());
    if (late || next_look.passed(now_ns())) {
      seen = look_for(peer, board);
      if (seen.code() == StatusCode::kPeerLost) return seen;
      if (!same_host(peer)) next_look = Deadline::after(kLookForPeer);
    }
    if (late) {
      return Status::timed_out("Timed out waiting for its connection" +
                               (seen.ok() ? "" : ": " + seen.message()));
    }
  }
}

Status MeshCore::look_for(const Endpoint& peer, const Noticeboard& board) {
  return same_host(peer) ? connect_unix(peer.socket, Deadline::at(0)).status()
                         : network_->look_for_peer(board);
}

Status MeshCore::enter_network(KeyValueStore& store, int rank) {
  const std::lock_guard making(network_mutex_);
  if (network_ == nullptr) {
    if (options_.wrap) {
      return Status::invalid_argument("links of an emulated rate lead to ranks of one host only");
    }
    const ucx::Wakers wakers{
        .arrived = [this] { doorbell().ring(); },
        .all = [this] { doorbell().ring_always(Doorbell::kCaller | Doorbell::kEngine); }};
    // A peer that cannot be added is missed by who waits for it.
    const auto on_peer = [this](ConnectedPeer peer) {
      static_cast<void>(add_peer(std::move(peer)));
    };
    auto network = NetworkPeers::create(self_.endpoint, options_.network, wakers, on_peer);
    if (!network.ok()) return network.status();
    network_ = std::move(network.value());
  }
  return store.set(network_key(rank), network_->address().encode());
}

ConnectedPeer* MeshCore::find_or_wait(const EngineId& engine, Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto known = [&] { return peers_.count(engine) != 0; };
  while (!known()) {
    const auto left = std::min<std::chrono::nanoseconds>(deadline.left(), std::chrono::hours(1));
    if (left.count() == 0) return nullptr;
    peer_added_.wait_for(lock, left);
  }
  return &peers_.at(engine);
}

void MeshCore::note_accept_trouble(Status trouble) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (accept_trouble_.ok()) accept_trouble_since_ = now_ns();
  accept_trouble_ = std::move(trouble);
}

// Not ok when it has lasted, or whatever its age.
Status MeshCore::accept_trouble(bool at_once) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool lasts = now_ns() - accept_trouble_since_ > kTroubleLimit.count();
  return at_once || lasts ? accept_trouble_ : Status();
}

Status MeshCore::add_peer(ConnectedPeer peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (peer.socket != nullptr) {
    if (Status status = watch_process(peer); !status.ok()) return status;
  }
  peers_.emplace(peer.engine, std::move(peer));
  peer_added_.notify_all();
  return {};
}

Status MeshCore::watch_process(ConnectedPeer& peer) {
  if (Status status = watch(peer.socket->get()); !status.ok()) return status;
  if (peer.pidfd.valid()) {
    if (Status status = watch(peer.pidfd.get()); !status.ok()) return status;
  }
  if (options_.wrap) peer.link = options_.wrap(peer.link);
  peer.link->set_tell_peer([socket = std::weak_ptr(peer.socket)](const std::string& why) {
    if (const auto open = socket.lock()) send_last_words(*open, kGivenUp + why);
  });
  peer.link->set_aside_sender([socket = std::weak_ptr(peer.socket)](auto bytes, auto fds) {
    const auto open = socket.lock();
    return open ? send_aside(*open, bytes, fds) : Status::peer_lost("the peer is lost");
  });
  return {};
}

void MeshCore::run() {
  epoll_event events[16];
  while (true) {
    const int count = epoll_wait(epoll_.get(), events, 16, next_timeout_ms());
    for (int i = 0; i < count; ++i) {
      if (events[i].data.fd == stop_.get()) return;
      on_event(events[i].data.fd);
    }
    drop_late_acceptors();
  }
}

int MeshCore::next_timeout_ms() const { return acceptors_.empty() ? -1 : 1000; }

void MeshCore::on_event(int fd) {
  if (fd == listener_.get()) {
    accept_all();
  } else if (acceptors_.count(fd) != 0) {
    on_acceptor(fd);
  } else {
    on_peer_event(fd);
  }
}

void MeshCore::accept_all() {
  while (true) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // The connection stays in the queue, and epoll would report it without a pause.
      if (errno == EMFILE || errno == ENFILE) {
        note_accept_trouble(Status::from_errno("accepting its connection", errno));
        std::this_thread::sleep_for(kAcceptRetry);
      }
      return;
    }
    note_accept_trouble({});
    const int fd = socket.get();
    if (!watch(fd).ok()) continue;
    acceptors_.emplace(fd, ShmAcceptor(std::move(socket), Deadline::after(kHandshakeLimit)));
  }
}

void MeshCore::on_acceptor(int fd) {
  Result<std::optional<ConnectedPeer>> step = acceptors_.at(fd).on_readable(self_);
  if (step.ok() && !step.value().has_value()) return;  // the handshake goes on
  // From here on the socket is watched as a peer's. Who failed is dropped without a word: a member
  // of the job times out in join() and says whom it misses, a stranger is not owed an answer.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  if (step.ok()) static_cast<void>(add_peer(std::move(*step.value())));
  if (step.status().code() == StatusCode::kSystem) note_accept_trouble(step.status());
  acceptors_.erase(fd);
}

void MeshCore::drop_late_acceptors() {
  const Nanoseconds now = now_ns();
  std::erase_if(acceptors_, [&](const auto& item) {
    if (!item.second.deadline().passed(now)) return false;
    // Not left to close(): a forked child may hold a copy, and then epoll goes on.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, item.first, nullptr);
    return true;
  });
}

void MeshCore::on_peer_event(int fd) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto entry = std::find_if(peers_.begin(), peers_.end(), [fd](const auto& item) {
    const ConnectedPeer& peer = item.second;
    return peer.socket != nullptr && (peer.socket->get() == fd || peer.pidfd.get() == fd);
  });
  if (entry == peers_.end()) return;
  ConnectedPeer& peer = entry->second;
  // Asides that a process sent before it died count as well: they are read until there is none.
  Result<SocketMessage> message = receive_message(peer.socket->get(), kMaxWords, Deadline::at(0));
  if (message.ok() && message.value().bytes[0] == static_cast<std::byte>(kAside)) {
    const std::shared_ptr<Link> link = peer.link;
    lock.unlock();
    std::vector<std::byte>& bytes = message.value().bytes;
    bytes.erase(bytes.begin());
    return link->deliver_aside({std::move(bytes), std::move(message.value().fds)});
  }
  const bool spurious = message.status().code() == StatusCode::kTimedOut;
  if (spurious && peer.socket->get() == fd) return;
  lose(peer, message.ok() ? text_of(message.value()) : std::string());
}

void MeshCore::lose(ConnectedPeer& peer, const std::string& last_words) {
  peer.link->fail(Status::peer_lost(peer.link->peer_name() + why_gone(peer, last_words)));
  for (const UniqueFd* watched : {&*peer.socket, &peer.pidfd}) {
    // Not left to close(): a forked child may hold a copy, and then epoll goes on.
    if (watched->valid()) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, watched->get(), nullptr);
  }
  peer.socket.reset();
  peer.pidfd.reset();
  doorbell().ring_always(Doorbell::kCaller | Doorbell::kEngine);
}

Mesh::Mesh(std::unique_ptr<MeshCore> core) : core_(std::move(core)) {}
Mesh::~Mesh() = default;

Result<std::unique_ptr<Mesh>> Mesh::create(MeshOptions options) {
  auto core = std::make_unique<MeshCore>(std::move(options));
  if (Status status = core->start(); !status.ok()) return status;
  return std::unique_ptr<Mesh>(new Mesh(std::move(core)));
}

Result<Membership> Mesh::join(KeyValueStore& store, int rank, int size, Deadline deadline) {
  Result<Membership> joined = core_->connect_all(store, rank, size, deadline);
  if (!joined.ok()) refuse(store, rank, joined.status().message());
  return joined;
}

void Mesh::refuse(KeyValueStore& store, int rank, const std::string& why) {
  // A store that fails has failed for the others too, or they wait until their time is up.
  static_cast<void>(store.set(endpoint_key(rank), Endpoint::encode_refusal(why)));
}

Doorbell& Mesh::doorbell() { return core_->doorbell(); }

}  // namespace freescale
