#include "cpp/rendezvous/tcp_listeners.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <vector>

#include "cpp/base/unique_fd.h"
#include "tests/cpp/check.h"

namespace freescale {
namespace {

// At a port of the kernel's choice, where this many wait to be accepted, and one more.
struct Listener {
  explicit Listener(uint32_t address = INADDR_LOOPBACK, int queue = 100)
      : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(address);
    socklen_t bytes = sizeof(name);
    CHECK_EQ(bind(socket.get(), reinterpret_cast<const sockaddr*>(&name), bytes), 0);
    CHECK_EQ(listen(socket.get(), queue), 0);
    CHECK_EQ(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&name), &bytes), 0);
    where.assign(reinterpret_cast<const char*>(&name), bytes);
  }

  UniqueFd socket;
  SocketAddress where;
};

Deadline soon() { return Deadline::after(std::chrono::milliseconds(200)); }

TEST(listeners_of_this_process_are_found) {
  const std::set<SocketAddress> before = tcp_listeners();
  {
    const Listener listener;
    const Listener everywhere(INADDR_ANY);  // which tells nobody where
    std::set<SocketAddress> expected = before;
    expected.insert(listener.where);
    CHECK(tcp_listeners() == expected);
    CHECK(is_socket_address(listener.where));
    CHECK(!is_socket_address(listener.where + "x"));
    CHECK(!is_socket_address(listener.where.substr(0, 1)));
  }
  CHECK(tcp_listeners() == before);
}

TEST(listeners_at_own_addresses_can_be_told_from_others) {
  const Listener own;
  sockaddr_in name{};
  name.sin_family = AF_INET;
  // Kept for documents, so nobody's: RFC 5737.
  CHECK_EQ(inet_pton(AF_INET, "203.0.113.1", &name.sin_addr), 1);
  const SocketAddress other(reinterpret_cast<const char*>(&name), sizeof(name));
  std::set<SocketAddress> both{own.where, other};
  drop_own(both);
  CHECK(both == std::set<SocketAddress>{other});
}

TEST(knock_is_refused_by_the_dead_alone) {
  SocketAddress dead;
  {
    const Listener listener;
    dead = listener.where;
  }
  const Status refused = knock({dead}, soon());
  CHECK_EQ(refused.code(), StatusCode::kPeerLost);
  CHECK_NE(refused.message().find("nobody listens at 127.0.0.1 port "), std::string::npos);
  const Listener living;
  CHECK_OK(knock({living.where}, soon()));
  CHECK_OK(knock({dead, living.where}, soon()));
  CHECK_EQ(knock({}, soon()).code(), StatusCode::kTimedOut);
}

// Its kernel drops what comes for a queue that is full, as a network drops all when it is down.
TEST(knock_without_an_answer_leaves_it_open) {
  SocketAddress dead;
  {
    const Listener listener;
    dead = listener.where;
  }
  const Listener busy(INADDR_LOOPBACK, 0);
  std::vector<UniqueFd> waiting;
  const auto* name = reinterpret_cast<const sockaddr*>(busy.where.data());
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    static_cast<void>(connect(waiting.back().get(), name, sizeof(sockaddr_in)));
  }
  for (const std::set<SocketAddress>& some : {std::set{busy.where}, std::set{busy.where, dead}}) {
    const Status open = knock(some, soon());
    CHECK_EQ(open.code(), StatusCode::kTimedOut);
    CHECK_NE(open.message().find("no answer from 127.0.0.1 port "), std::string::npos);
  }
}

}  // namespace
}  // namespace freescale
