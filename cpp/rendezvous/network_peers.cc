#include "cpp/rendezvous/network_peers.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "cpp/base/foreign.h"
#include "cpp/base/text.h"
#include "cpp/rendezvous/host_identity.h"
#include "cpp/rendezvous/interfaces.h"

namespace freescale {
namespace {

constexpr uint64_t kMagic = 0x667265656e657431;  // protocol version 1
constexpr std::string_view kAddressMark = "freescale-ucx2";

enum Kind : uint32_t { kHello = 1, kWelcome = 2, kReady = 3 };

// How long the first attempt to connect may take, and each further one twice as long; where a
// network drops everything, UCX over TCP gives up after 7 s (two repetitions of the first packet).
constexpr std::chrono::seconds kFirstPatience{10};
// Between attempts, doubled with each. UCX writes a line to the standard error stream at each.
constexpr std::chrono::milliseconds kFirstPause{250};
constexpr std::chrono::seconds kLongestPause{2};
// For an answer to a knock: a process that is gone refuses within a round trip.
constexpr std::chrono::milliseconds kKnock{500};

std::string to_hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto value = static_cast<unsigned char>(c);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

bool from_hex(std::string_view text, std::string* bytes) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() % 2 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes->push_back(static_cast<char>(high << 4 | low));
  }
  return true;
}

bool from_decimal(std::string_view text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string_view take_word(std::string_view* text) {
  const size_t end = std::min(text->find(' '), text->size());
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return word;
}

std::string name_of(int32_t pid, const char* host) {
  return "process " + std::to_string(pid) + " on host " + readable(host);
}

}  // namespace

// What the two sides say. The worker's address follows a Hello.
struct NetworkPeers::Greeting {
  uint64_t magic = kMagic;
  uint32_t kind = 0;
  int32_t pid = 0;
  EngineId engine{};
  Secret secret{};
  uint64_t to_key = 0;  // the end of the one who reads this, where it has one
  uint64_t key = 0;     // the end of the one who says it
  char host[64] = {};
};

std::string NetworkAddress::encode() const {
  std::string text = std::string(kAddressMark) + " " + version + " " + to_hex(host) + " " +
                     to_hex(worker) + " " + std::to_string(place);
  for (const SocketAddress& listener : listeners) text += " " + to_hex(listener);
  return text;
}

Result<NetworkAddress> NetworkAddress::decode(std::string_view text) {
  std::string_view rest = text;
  const std::string_view mark = take_word(&rest);
  NetworkAddress address;
  address.version = take_word(&rest);
  bool well_formed = mark == kAddressMark && from_hex(take_word(&rest), &address.host) &&
                     from_hex(take_word(&rest), &address.worker) && !address.worker.empty() &&
                     from_decimal(take_word(&rest), &address.place);
  while (well_formed && !rest.empty()) {
    SocketAddress listener;
    well_formed = from_hex(take_word(&rest), &listener) && is_socket_address(listener);
    address.listeners.insert(std::move(listener));
  }
  if (well_formed) return address;
  return Status::mismatch("it published a network address that this version cannot read: '" +
                          readable(std::string(text.substr(0, 40))) + "'");
}

Result<std::unique_ptr<NetworkPeers>> NetworkPeers::create(
    const Endpoint& self, ucx::NetworkOptions options, ucx::Wakers wakers,
    std::function<void(ConnectedPeer)> on_peer) {
  const Result<uint64_t> place = host_identity("");
  if (!place.ok()) return place.status();
  std::unique_ptr<NetworkPeers> peers(new NetworkPeers(self, place.value(), std::move(options),
                                                       std::move(wakers), std::move(on_peer)));
  if (Status status = peers->appear(); !status.ok()) return status;
  return peers;
}

Status NetworkPeers::appear() {
  auto presence = std::make_unique<Presence>();
  presence->interfaces = usable_interfaces();
  const std::set<SocketAddress> before = tcp_listeners();
  Result<std::unique_ptr<ucx::Network>> network = ucx::Network::create(
      options_, wakers_, [this, own = presence.get()](const std::vector<std::byte>& message) {
        on_handshake(*own->network, message);
      });
  if (!network.ok()) return network.status();
  // UCX does not tell them. What another thread has opened meanwhile does no harm: it lives no
  // longer than this process.
  presence->listeners = tcp_listeners();
  for (const SocketAddress& older : before) presence->listeners.erase(older);
  presence->network = std::move(network.value());
  if (Status status = presence->network->start(); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  presences_.push_back(std::move(presence));
  return {};
}

bool NetworkPeers::has_new_interface() const {
  const std::set<std::string> now = usable_interfaces();
  const std::set<std::string>& then = newest().interfaces;
  return !std::includes(then.begin(), then.end(), now.begin(), now.end());
}

const NetworkPeers::Presence& NetworkPeers::newest() const {
  const std::lock_guard lock(mutex_);
  return *presences_.back();
}

NetworkAddress NetworkPeers::address() const {
  const Presence& presence = newest();
  return {presence.network->version(), host_name(), presence.network->address(), place_,
          presence.listeners};
}

Status NetworkPeers::look_for_peer(const Noticeboard& board) {
  {
    const std::lock_guard lock(appear_mutex_);
    if (has_new_interface()) {
      if (Status status = appear(); !status.ok()) return status;
    }
  }
  // Another group may be why this process has appeared anew.
  if (Status status = board.publish(address()); !status.ok()) return status;
  const Result<NetworkAddress> peer = board.find(Deadline::at(0));
  if (!peer.ok()) return peer.status();
  const std::string host = readable(peer.value().host);
  std::set<SocketAddress> listeners = peer.value().listeners;
  if (peer.value().place != place_) drop_own(listeners);
  const Status answer = knock(listeners, Deadline::after(kKnock));
  if (answer.ok()) return answer;
  const bool dead = answer.code() == StatusCode::kPeerLost;
  return {answer.code(), (dead ? "its process on host " + host + " has died: "
                               : "host " + host + " does not answer: ") +
                             answer.message()};
}

// The first attempts are short, as the network may be there in a moment. On a busy machine the last
// ones have the time that a handshake takes there.
Result<ConnectedPeer> NetworkPeers::connect(const Endpoint& peer, const Noticeboard& board,
                                            Deadline deadline) {
  std::chrono::nanoseconds patience = kFirstPatience;
  std::chrono::nanoseconds pause = kFirstPause;
  Status cause;
  Deadline hopeless = Deadline::after(options_.unreachable);
  while (true) {
    const Result<NetworkAddress> address = board.find(deadline);
    if (!address.ok()) return address.status();
    const Deadline limit = std::min(deadline, Deadline::after(patience));
    Result<ConnectedPeer> connected = try_to_connect(peer, address.value(), limit, board.hope);
    if (connected.ok()) return connected;
    const Status why = connected.status();
    const bool may_pass =
        why.code() == StatusCode::kPeerLost || why.code() == StatusCode::kTimedOut;
    if (!may_pass) return located(address.value(), why);
    // Silence says less than an error before.
    if (cause.ok() || why.code() == StatusCode::kPeerLost) cause = why;
    const Status seen = look_for_peer(board);
    if (seen.code() == StatusCode::kPeerLost) return located(address.value(), seen);
    // It lives and has not come round to an answer yet.
    const bool slow = why.code() == StatusCode::kTimedOut && seen.ok();
    if (slow) hopeless = Deadline::after(options_.unreachable);
    if (deadline.passed(now_ns()) || hopeless.passed(now_ns())) {
      return located(address.value(), Status::timed_out("Timed out connecting: " + cause.message() +
                                                        (seen.ok() ? "" : "; " + seen.message())));
    }
    std::this_thread::sleep_for(std::min(pause, deadline.left()));
    patience *= 2;
    pause = std::min<std::chrono::nanoseconds>(2 * pause, kLongestPause);
  }
}

Result<ConnectedPeer> NetworkPeers::try_to_connect(const Endpoint& peer,
                                                   const NetworkAddress& address, Deadline deadline,
                                                   const std::function<Status()>& hope) {
  ucx::Network& network = *newest().network;
  Result<std::shared_ptr<ucx::UcxLink>> opened =
      network.open_link(address.worker, "its process on host " + readable(address.host));
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<ucx::UcxLink> link = opened.value();
  const Meeting meeting{
      .link = link, .network = &network, .engine = peer.engine, .welcome = peer.welcome};
  {
    const std::lock_guard lock(mutex_);
    meetings_[link->key()] = meeting;
  }
  Status status = greet(meeting, kHello, peer.knock, 0);
  if (status.ok()) status = await_welcome(link, deadline, hope);
  {
    const std::lock_guard lock(mutex_);
    // One that has come meanwhile counts: only from here on nothing comes for this link.
    if (meetings_.at(link->key()).answered) status = {};
    meetings_.erase(link->key());
  }
  if (status.ok()) status = greet(meeting, kReady, peer.knock, link->peer_key());
  if (status.ok()) return make_peer(meeting);
  network.discard(*link);
  return status;
}

Status NetworkPeers::await_welcome(const std::shared_ptr<ucx::UcxLink>& link, Deadline deadline,
                                   const std::function<Status()>& hope) {
  std::unique_lock lock(mutex_);
  while (!meetings_.at(link->key()).answered) {
    if (link->failed()) return link->failure();
    if (deadline.passed(now_ns())) {
      return Status::timed_out(link->peer_name() + " has not answered the greeting");
    }
    const auto turn = std::min<std::chrono::nanoseconds>(deadline.left(), kLookAgain);
    changed_.wait_for(lock, turn);
    lock.unlock();
    const Status hopeless = hope();
    lock.lock();
    if (!hopeless.ok()) return hopeless;
  }
  return {};
}

Status NetworkPeers::greet(const Meeting& meeting, uint32_t kind, const Secret& secret,
                           uint64_t to_key) {
  Greeting greeting;
  greeting.kind = kind;
  greeting.pid = getpid();
  greeting.engine = self_.engine;
  greeting.secret = secret;
  greeting.to_key = to_key;
  greeting.key = meeting.link->key();
  host_name().copy(greeting.host, sizeof(greeting.host) - 1);
  const auto head = std::as_bytes(std::span(&greeting, 1));
  std::vector<std::byte> message(head.begin(), head.end());
  if (kind == kHello) {
    const auto tail = std::as_bytes(std::span(meeting.network->address()));
    message.insert(message.end(), tail.begin(), tail.end());
  }
  return meeting.link->send_control(ucx::MessageKind::kHandshake, message, 0);
}

Status NetworkPeers::located(const NetworkAddress& address, const Status& why) const {
  return {why.code(), "over the network, to host " + readable(address.host) + " (UCX " +
                          address.version + " there, " + newest().network->version() +
                          " here): " + why.message()};
}

ConnectedPeer NetworkPeers::make_peer(const Meeting& meeting) const {
  const std::string route = meeting.link->route();
  meeting.link->set_tell_peer(
      [link = meeting.link.get()](const std::string& why) { link->tell_given_up(why); });
  ConnectedPeer peer;
  peer.engine = meeting.engine;
  peer.link = meeting.link;
  peer.probe = "another host, UCX " + meeting.network->version() +
               (route.empty() ? "" : " over " + route) + ", proven both ways";
  return peer;
}

void NetworkPeers::on_handshake(ucx::Network& network, const std::vector<std::byte>& message) {
  if (message.size() < sizeof(Greeting)) return;
  auto greeting = copy_of_foreign<Greeting>(message.data());
  greeting.host[sizeof(greeting.host) - 1] = '\0';
  if (greeting.magic != kMagic) return;
  const char* rest = reinterpret_cast<const char*>(message.data()) + sizeof(Greeting);
  if (greeting.kind == kHello) {
    on_hello(network, greeting, std::string(rest, message.size() - sizeof(Greeting)));
  } else if (greeting.kind == kWelcome) {
    on_welcome(greeting);
  } else if (greeting.kind == kReady) {
    on_ready(greeting);
  }
}

// Who does not know the secret gets no answer.
void NetworkPeers::on_hello(ucx::Network& network, const Greeting& greeting,
                            const std::string& address) {
  if (greeting.secret != self_.knock || greeting.key == 0 || address.empty()) return;
  const std::string name = name_of(greeting.pid, greeting.host);
  Result<std::shared_ptr<ucx::UcxLink>> link = network.open_link(address, name);
  if (!link.ok()) return;  // the connector tries again
  link.value()->set_peer(greeting.key, name);
  const Meeting meeting{.link = link.value(), .network = &network, .engine = greeting.engine};
  {
    const std::lock_guard lock(mutex_);
    meetings_[link.value()->key()] = meeting;
  }
  static_cast<void>(greet(meeting, kWelcome, self_.welcome, greeting.key));
}

void NetworkPeers::on_welcome(const Greeting& greeting) {
  const std::lock_guard lock(mutex_);
  const auto found = meetings_.find(greeting.to_key);
  if (found == meetings_.end() || greeting.engine != found->second.engine ||
      greeting.secret != found->second.welcome || greeting.key == 0) {
    return;
  }
  found->second.link->set_peer(greeting.key, name_of(greeting.pid, greeting.host));
  found->second.answered = true;
  changed_.notify_all();
}

void NetworkPeers::on_ready(const Greeting& greeting) {
  Meeting meeting;
  std::vector<Meeting> given_up;
  {
    const std::lock_guard lock(mutex_);
    const auto found = meetings_.find(greeting.to_key);
    if (found == meetings_.end() || greeting.engine != found->second.engine ||
        greeting.secret != self_.knock) {
      return;
    }
    meeting = found->second;
    meetings_.erase(found);
    // The connector has this link alone.
    std::erase_if(meetings_, [&](const auto& entry) {
      const bool same = entry.second.engine == greeting.engine;
      if (same) given_up.push_back(entry.second);
      return same;
    });
  }
  for (const Meeting& each : given_up) each.network->discard(*each.link);
  on_peer_(make_peer(meeting));
}

}  // namespace freescale
