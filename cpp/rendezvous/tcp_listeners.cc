#include "cpp/rendezvous/tcp_listeners.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cpp/base/foreign.h"
#include "cpp/base/unique_fd.h"

namespace freescale {
namespace {

const sockaddr& as_sockaddr(const sockaddr_storage& address) {
  return reinterpret_cast<const sockaddr&>(address);
}

socklen_t length_of(sa_family_t family) {
  if (family == AF_INET) return sizeof(sockaddr_in);
  return family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

sockaddr_storage from_bytes(std::string_view bytes) {
  sockaddr_storage address{};
  std::memcpy(&address, bytes.data(), std::min(bytes.size(), sizeof(address)));
  return address;
}

bool is_wildcard(const sockaddr_storage& address) {
  const std::string text = text_of_address(as_sockaddr(address));
  return text == "0.0.0.0" || text == "::";
}

// Only the own addresses can be bound to.
bool is_own(const SocketAddress& bytes) {
  sockaddr_storage address = from_bytes(bytes);
  const bool v4 = address.ss_family == AF_INET;
  (v4 ? reinterpret_cast<sockaddr_in&>(address).sin_port
      : reinterpret_cast<sockaddr_in6&>(address).sin6_port) = 0;
  const UniqueFd probe(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  return bind(probe.get(), &as_sockaddr(address), length_of(address.ss_family)) == 0;
}

std::string with_port(const SocketAddress& bytes) {
  const sockaddr_storage address = from_bytes(bytes);
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const in_port_t port = address.ss_family == AF_INET ? v4.sin_port : v6.sin6_port;
  return text_of_address(as_sockaddr(address)) + " port " + std::to_string(ntohs(port));
}

// One attempt to connect, which goes on in the kernel.
struct Attempt {
  SocketAddress to;
  UniqueFd socket;
  int error = EINPROGRESS;  // 0: accepted
};

Attempt begin(const SocketAddress& to) {
  const sockaddr_storage address = from_bytes(to);
  Attempt attempt{to, UniqueFd(socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                                      IPPROTO_TCP))};
  const bool fails = !attempt.socket.valid() || connect(attempt.socket.get(), &as_sockaddr(address),
                                                        length_of(address.ss_family)) != 0;
  attempt.error = fails ? errno : 0;
  return attempt;
}

void look_at(Attempt& attempt, const pollfd& polled) {
  if (attempt.error != EINPROGRESS || polled.revents == 0) return;
  socklen_t bytes = sizeof(attempt.error);
  getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &attempt.error, &bytes);
}

bool goes_on(const std::vector<Attempt>& attempts) {
  return std::any_of(attempts.begin(), attempts.end(),
                     [](const Attempt& each) { return each.error == EINPROGRESS; }) &&
         std::none_of(attempts.begin(), attempts.end(),
                      [](const Attempt& each) { return each.error == 0; });
}

void await_end(std::vector<Attempt>& attempts, Deadline deadline) {
  while (goes_on(attempts)) {
    std::vector<pollfd> polled;
    for (const Attempt& each : attempts) {
      polled.push_back({each.error == EINPROGRESS ? each.socket.get() : -1, POLLOUT, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
    if (poll(polled.data(), polled.size(), static_cast<int>(left)) <= 0) return;
    for (size_t i = 0; i < polled.size(); ++i) look_at(attempts[i], polled[i]);
  }
}

// Where a descriptor of this process listens; empty if it does not.
SocketAddress listener_at(int fd) {
  int listens = 0;
  socklen_t bytes = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) return {};
  sockaddr_storage address{};
  bytes = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return {};
  if (length_of(address.ss_family) == 0 || is_wildcard(address)) return {};
  return {reinterpret_cast<const char*>(&address), length_of(address.ss_family)};
}

}  // namespace

std::string text_of_address(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address.sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  } else if (address.sa_family == AF_INET6) {
    bytes = &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  } else {
    return {};
  }
  return inet_ntop(address.sa_family, bytes, text, sizeof(text)) == nullptr ? "" : text;
}

bool is_socket_address(std::string_view bytes) {
  if (bytes.size() < sizeof(sa_family_t)) return false;
  const auto family = copy_of_foreign<sa_family_t>(bytes.data());
  return length_of(family) != 0 && bytes.size() == length_of(family);
}

std::set<SocketAddress> tcp_listeners() {
  std::set<SocketAddress> found;
  std::error_code ignored;
  std::filesystem::directory_iterator entry("/proc/self/fd", ignored);
  for (; entry != std::filesystem::directory_iterator(); entry.increment(ignored)) {
    SocketAddress address = listener_at(std::atoi(entry->path().filename().c_str()));
    if (!address.empty()) found.insert(std::move(address));
  }
  return found;
}

void drop_own(std::set<SocketAddress>& listeners) { std::erase_if(listeners, is_own); }

Status knock(const std::set<SocketAddress>& listeners, Deadline deadline) {
  std::vector<Attempt> attempts;
  for (const SocketAddress& each : listeners) attempts.push_back(begin(each));
  await_end(attempts, deadline);
  const Attempt* open = nullptr;
  for (const Attempt& each : attempts) {
    if (each.error == 0) return {};
    if (each.error != ECONNREFUSED) open = &each;
  }
  if (attempts.empty()) return Status::timed_out("it has no address that leads there");
  if (open == nullptr) {
    return Status::peer_lost("nobody listens at " + with_port(attempts[0].to) + " any more");
  }
  return Status::timed_out("no answer from " + with_port(open->to));
}

}  // namespace freescale
