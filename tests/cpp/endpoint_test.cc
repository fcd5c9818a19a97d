#include "cpp/rendezvous/endpoint.h"

#include <sys/socket.h>
#include <unistd.h>

#include "cpp/rendezvous/unix_socket.h"
#include "tests/cpp/check.h"

namespace freescale {
namespace {

TEST(endpoint_survives_the_store) {
  Endpoint endpoint;
  endpoint.engine = {0, ~uint64_t{0}};
  endpoint.knock = {1, 2};
  endpoint.welcome = {uint64_t{1} << 63, 0x123456789abcdef0};
  endpoint.group_id = 42;
  endpoint.host = 0xfedcba9876543210;
  endpoint.socket = "freescale-0123456789abcdef0123456789abcdef";
  const Result<Endpoint> decoded = Endpoint::decode(endpoint.encode());
  CHECK_OK(decoded);
  CHECK(decoded.value().engine == endpoint.engine);
  CHECK(decoded.value().knock == endpoint.knock);
  CHECK(decoded.value().welcome == endpoint.welcome);
  CHECK_EQ(decoded.value().group_id, endpoint.group_id);
  CHECK_EQ(decoded.value().host, endpoint.host);
  CHECK_EQ(decoded.value().socket, endpoint.socket);
}

TEST(endpoint_of_another_version_is_refused) {
  Endpoint endpoint;
  endpoint.socket = "name";
  const std::string good = endpoint.encode();
  CHECK_OK(Endpoint::decode(good));
  for (const std::string& bad : {std::string(), "freescale1" + good.substr(10), good.substr(0, 60),
                                 std::string(5000, 'x'), good.substr(0, good.size() - 4)}) {
    const Result<Endpoint> decoded = Endpoint::decode(bad);
    CHECK_EQ(decoded.status().code(), StatusCode::kMismatch);
    CHECK_NE(decoded.status().message().find("this version cannot read"), std::string::npos);
    CHECK_LT(decoded.status().message().size(), 200u);
  }
}

TEST(unix_socket_passes_messages_and_descriptors) {
  std::string name;
  const Result<UniqueFd> listener = listen_unix(&name);
  CHECK_OK(listener);
  const Result<UniqueFd> client = connect_unix(name, Deadline::after(std::chrono::seconds(1)));
  CHECK_OK(client);
  const UniqueFd server(accept(listener.value().get(), nullptr, nullptr));
  const Result<PeerCredentials> peer = peer_credentials(server.get());
  CHECK_OK(peer);
  CHECK_EQ(peer.value().pid, getpid());
  CHECK_EQ(peer.value().uid, geteuid());

  const std::string text = "hello";
  const int fds[] = {0, listener.value().get()};
  CHECK_OK(send_message(client.value().get(), std::as_bytes(std::span(text)), fds));
  const Result<SocketMessage> got =
      receive_message(server.get(), 100, Deadline::after(std::chrono::seconds(1)));
  CHECK_OK(got);
  CHECK_EQ(got.value().fds.size(), 2u);
  CHECK_EQ(got.value().bytes.size(), text.size());
  CHECK_EQ(static_cast<char>(got.value().bytes[4]), 'o');
}

TEST(unix_socket_waits_no_longer_than_asked) {
  std::string name;
  const Result<UniqueFd> listener = listen_unix(&name);
  CHECK_OK(listener);
  const Result<UniqueFd> client = connect_unix(name, Deadline::never());
  CHECK_OK(client);
  const Nanoseconds start = now_ns();
  const Result<SocketMessage> nothing =
      receive_message(client.value().get(), 100, Deadline::after(std::chrono::milliseconds(30)));
  CHECK_EQ(nothing.status().code(), StatusCode::kTimedOut);
  CHECK_GE(now_ns() - start, 30'000'000);
  CHECK_NE(nothing.status().message().find("Timed out "), std::string::npos);
}

// A full backlog is waited for, up to the deadline.
TEST(unix_socket_connect_waits_for_a_busy_listener) {
  std::string name;
  const Result<UniqueFd> listener = listen_unix(&name);
  CHECK_OK(listener);
  CHECK_EQ(listen(listener.value().get(), 0), 0);
  const Result<UniqueFd> first = connect_unix(name, Deadline::never());
  CHECK_OK(first);
  const Nanoseconds start = now_ns();
  const Result<UniqueFd> second =
      connect_unix(name, Deadline::after(std::chrono::milliseconds(30)));
  CHECK(!second.ok());
  CHECK_GE(now_ns() - start, 30'000'000);
  CHECK_EQ(second.status().code(), StatusCode::kTimedOut);
  const UniqueFd server(accept(listener.value().get(), nullptr, nullptr));
  CHECK_OK(connect_unix(name, Deadline::after(std::chrono::seconds(5))));
}

TEST(unix_socket_without_listener_is_an_error) {
  const Result<UniqueFd> socket = connect_unix("freescale-nobody", Deadline::never());
  CHECK_EQ(socket.status().code(), StatusCode::kPeerLost);
}

}  // namespace
}  // namespace freescale
