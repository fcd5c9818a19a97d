#include "cpp/rendezvous/network_peers.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpp/base/foreign.h"
#include "cpp/base/text.h"
#include "cpp/rendezvous/host_identity.h"

namespace freescale {
namespace {

constexpr uint64_t kMagic = 0x667265656e657431;  // protocol version 1
constexpr std::string_view kAddressMark = "freescale-ucx1";

// Nobody answers to a Question: whether it can be delivered is all that its sender wants to know.
enum Kind : uint32_t { kHello = 1, kWelcome = 2, kReady = 3, kQuestion = 4 };

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
  return std::string(kAddressMark) + " " + version + " " + to_hex(host) + " " + to_hex(worker);
}

Result<NetworkAddress> NetworkAddress::decode(std::string_view text) {
  std::string_view rest = text;
  const std::string_view mark = take_word(&rest);
  NetworkAddress address;
  address.version = take_word(&rest);
  const bool hex = from_hex(take_word(&rest), &address.host) && from_hex(rest, &address.worker);
  if (mark != kAddressMark || !hex || address.worker.empty()) {
    return Status::mismatch("it published a network address that this version cannot read: '" +
                            readable(std::string(text.substr(0, 40))) + "'");
  }
  return address;
}

Result<std::unique_ptr<NetworkPeers>> NetworkPeers::create(
    const Endpoint& self, ucx::NetworkOptions options, ucx::Wakers wakers,
    std::function<void(ConnectedPeer)> on_peer) {
  std::unique_ptr<NetworkPeers> peers(new NetworkPeers(self, std::move(on_peer)));
  Result<std::unique_ptr<ucx::Network>> network =
      ucx::Network::create(std::move(options), std::move(wakers),
                           [peers = peers.get()](const std::vector<std::byte>& message) {
                             peers->on_handshake(message);
                           });
  if (!network.ok()) return network.status();
  peers->network_ = std::move(network.value());
  if (Status status = peers->network_->start(); !status.ok()) return status;
  return peers;
}

NetworkAddress NetworkPeers::address() const {
  return {network_->version(), host_name(), network_->address()};
}

Status NetworkPeers::greet(ucx::UcxLink& link, uint32_t kind, const Secret& secret,
                           uint64_t to_key) {
  Greeting greeting;
  greeting.kind = kind;
  greeting.pid = getpid();
  greeting.engine = self_.engine;
  greeting.secret = secret;
  greeting.to_key = to_key;
  greeting.key = link.key();
  host_name().copy(greeting.host, sizeof(greeting.host) - 1);
  const auto head = std::as_bytes(std::span(&greeting, 1));
  std::vector<std::byte> message(head.begin(), head.end());
  if (kind == kHello) {
    const std::string address = network_->address();
    const auto tail = std::as_bytes(std::span(address));
    message.insert(message.end(), tail.begin(), tail.end());
  }
  return link.send_control(ucx::MessageKind::kHandshake, message, 0);
}

Result<ConnectedPeer> NetworkPeers::connect(const Endpoint& peer, const NetworkAddress& address,
                                            Deadline deadline,
                                            const std::function<Status()>& hope) {
  Result<std::shared_ptr<ucx::UcxLink>> opened = open_link(address);
  if (!opened.ok()) return opened.status();
  const std::shared_ptr<ucx::UcxLink> link = opened.value();
  const Meeting meeting{.link = link, .engine = peer.engine, .welcome = peer.welcome};
  {
    const std::lock_guard lock(mutex_);
    meetings_[link->key()] = meeting;
  }
  Status status = greet(*link, kHello, peer.knock, 0);
  if (status.ok()) status = await_welcome(link, deadline, hope);
  {
    const std::lock_guard lock(mutex_);
    meetings_.erase(link->key());
  }
  if (status.ok()) status = greet(*link, kReady, peer.knock, link->peer_key());
  if (status.ok()) return make_peer(meeting);
  link->close();
  return Status(status.code(), "over the network, to host " + readable(address.host) + " (UCX " +
                                   address.version + " there, " + network_->version() +
                                   " here): " + status.message());
}

Status NetworkPeers::await_welcome(const std::shared_ptr<ucx::UcxLink>& link, Deadline deadline,
                                   const std::function<Status()>& hope) {
  std::unique_lock lock(mutex_);
  while (!meetings_.at(link->key()).answered) {
    if (link->failed()) return link->failure();
    if (deadline.passed(now_ns())) {
      return Status::timed_out("Timed out waiting for an answer to its greeting");
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

Result<std::shared_ptr<ucx::UcxLink>> NetworkPeers::open_link(const NetworkAddress& address) {
  return network_->open_link(address.worker, "its process on host " + readable(address.host));
}

std::shared_ptr<const Link> NetworkPeers::watch(const NetworkAddress& address) {
  Result<std::shared_ptr<ucx::UcxLink>> link = open_link(address);
  if (!link.ok()) return nullptr;  // which says nothing of the peer
  static_cast<void>(greet(*link.value(), kQuestion, {}, 0));
  return link.value();
}

ConnectedPeer NetworkPeers::make_peer(const Meeting& meeting) const {
  const std::string route = meeting.link->route();
  meeting.link->set_tell_peer(
      [link = meeting.link.get()](const std::string& why) { link->tell_given_up(why); });
  ConnectedPeer peer;
  peer.engine = meeting.engine;
  peer.link = meeting.link;
  peer.probe = "another host, UCX " + network_->version() +
               (route.empty() ? "" : " over " + route) + ", proven both ways";
  return peer;
}

void NetworkPeers::on_handshake(const std::vector<std::byte>& message) {
  if (message.size() < sizeof(Greeting)) return;
  auto greeting = copy_of_foreign<Greeting>(message.data());
  greeting.host[sizeof(greeting.host) - 1] = '\0';
  if (greeting.magic != kMagic) return;
  const char* rest = reinterpret_cast<const char*>(message.data()) + sizeof(Greeting);
  if (greeting.kind == kHello) {
    on_hello(greeting, std::string(rest, message.size() - sizeof(Greeting)));
  } else if (greeting.kind == kWelcome) {
    on_welcome(greeting);
  } else if (greeting.kind == kReady) {
    on_ready(greeting);
  }
}

// Who does not know the secret gets no answer.
void NetworkPeers::on_hello(const Greeting& greeting, std::string address) {
  if (greeting.secret != self_.knock || greeting.key == 0 || address.empty()) return;
  const std::string name = name_of(greeting.pid, greeting.host);
  Result<std::shared_ptr<ucx::UcxLink>> link = network_->open_link(address, name);
  if (!link.ok()) return;
  link.value()->set_peer(greeting.key, name);
  {
    const std::lock_guard lock(mutex_);
    meetings_[link.value()->key()] = {.link = link.value(), .engine = greeting.engine};
  }
  static_cast<void>(greet(*link.value(), kWelcome, self_.welcome, greeting.key));
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
  {
    const std::lock_guard lock(mutex_);
    const auto found = meetings_.find(greeting.to_key);
    if (found == meetings_.end() || greeting.engine != found->second.engine ||
        greeting.secret != self_.knock) {
      return;
    }
    meeting = found->second;
    meetings_.erase(found);
  }
  on_peer_(make_peer(meeting));
}

}  // namespace freescale
