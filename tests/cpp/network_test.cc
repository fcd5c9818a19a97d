// Processes of different hosts, which here are meshes that have been told so. Needs UCX; see
// CMakeLists.txt.

#include <netinet/in.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "cpp/base/random.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/rendezvous/host_identity.h"
#include "cpp/rendezvous/mesh.h"
#include "cpp/rendezvous/network_peers.h"
#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

std::unique_ptr<Mesh> mesh_on(const std::string& host,
                              std::chrono::nanoseconds heartbeat = std::chrono::seconds(5)) {
  Result<std::unique_ptr<Mesh>> mesh =
      Mesh::create({.wrap = nullptr, .host = host, .network = {{}, {}, heartbeat}});
  CHECK_OK(mesh);
  return std::move(mesh.value());
}

// One mesh for each name of a host, joined.
struct Members {
  explicit Members(const std::vector<std::string>& hosts) : joined(hosts.size()) {
    for (const std::string& host : hosts) meshes.push_back(mesh_on(host));
    std::vector<std::thread> threads;
    const auto size = static_cast<int>(hosts.size());
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] { joined[rank] = join(*meshes[rank], store, rank, size); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Link& link(int from, int to) { return *joined[from].links[to]; }

  MemoryStore store;
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<Membership> joined;
};

class Received : public LinkSink {
 public:
  void on_record(std::span<const std::byte> record) override {
    records.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  }
  void on_chunk(const ChunkTag& tag, std::span<const std::byte> data) override {
    tags.push_back(tag);
    chunks.emplace_back(data.begin(), data.end());
  }
  std::vector<std::string> records;
  std::vector<ChunkTag> tags;
  std::vector<std::vector<std::byte>> chunks;
};

template <typename Done>
void poll_until(Link& link, Received& sink, Done done) {
  const Deadline limit = soon();
  while (!done()) {
    CHECK(!limit.passed(now_ns()));
    bool any = link.receive();
    any |= link.poll_record(sink);
    for (int level = 0; level < kPriorityLevels; ++level) any |= link.poll_chunk(level, sink);
    if (!any) std::this_thread::yield();
  }
}

void await_failure(const Link& link, std::initializer_list<std::string_view> words) {
  await([&] { return link.failed(); }, soon());
  CHECK_EQ(link.failure().code(), StatusCode::kPeerLost);
  expect_text(link.failure().message(), words);
}

// First those that fork: a process that has used UCX must not.

TEST(network_without_a_library_is_an_error_on_all_ranks) {
  ChildProcess alone([] {
    CHECK_EQ(setenv("FREESCALE_UCX_LIBRARY", "/nowhere/libucp.so.0", 1), 0);
    MemoryStore store;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto mesh = mesh_on(rank == 0 ? "a" : "b");
        const Result<Membership> joined = mesh->join(store, rank, 2, soon());
        CHECK(!joined.ok());
        expect_text(joined.status().message(), {"rank", "/nowhere/libucp.so.0"});
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  alone.expect_success();
}

// Dies, or stops, once it has joined as rank 1.
void expect_lost(int signal, std::chrono::nanoseconds heartbeat, std::string_view words) {
  SharedStore store;
  ChildProcess other([&] {
    const auto mesh = mesh_on("b", heartbeat);
    const Membership joined = join(*mesh, store, 1, 2);
    CHECK_OK(store.set("joined", ""));
    while (true) pause();
  });
  const auto mesh = mesh_on("a", heartbeat);
  const Membership joined = join(*mesh, store, 0, 2);
  CHECK_OK(store.get("joined", soon()).status());
  other.signal(signal);
  await_failure(*joined.links[1], {words});
  if (signal != SIGKILL) other.signal(SIGKILL);
  other.expect_killed_by(SIGKILL);
}

TEST(network_notices_a_death) {
  expect_lost(SIGKILL, std::chrono::seconds(5), "has died or was cut off");
}

// Three of its heartbeats, for which no busy machine lets a process wait that runs.
TEST(network_notices_silence) { expect_lost(SIGSTOP, milliseconds(500), "has been silent for "); }

// Dies where it would have to connect to the other one, which has no socket of its to knock at.
// The kernel holds little, and nobody takes the chunks from it: they stay in the sender's memory,
// until there is nobody to send to.
TEST(network_reads_what_was_put_until_it_is_sent_or_the_peer_is_lost) {
  constexpr const char* kBuffers[] = {"UCX_TCP_SNDBUF", "UCX_TCP_RCVBUF"};
  for (const char* buffer : kBuffers) CHECK_EQ(setenv(buffer, "32k", 1), 0);
  SharedStore store;
  ChildProcess other([&] {
    const auto mesh = mesh_on("b");
    const Membership joined = join(*mesh, store, 1, 2);
    CHECK_OK(store.set("joined", ""));
    while (true) pause();
  });
  const auto mesh = mesh_on("a");
  const Membership joined = join(*mesh, store, 0, 2);
  for (const char* buffer : kBuffers) CHECK_EQ(unsetenv(buffer), 0);
  CHECK_OK(store.get("joined", soon()).status());
  Link& link = *joined.links[1];
  std::vector<std::byte> data(link.chunk_bytes());
  const Segment piece{data.data(), data.size()};
  CHECK_EQ(link.put_count(), 0u);
  CHECK(link.try_put(0, {}, {&piece, 1}));
  CHECK_EQ(link.put_count(), 1u);
  Received nothing;
  poll_until(link, nothing, [&] { return link.has_read(1); });
  other.signal(SIGSTOP);
  for (int level = 0; level < kPriorityLevels; ++level) {
    while (link.try_put(level, {}, {&piece, 1})) {
    }
  }
  CHECK(!link.has_read(link.put_count()));
  other.signal(SIGKILL);
  other.expect_killed_by(SIGKILL);
  poll_until(link, nothing, [&] { return link.failed() && link.has_read(link.put_count()); });
}

// Leaves its address, as that of rank 1, and dies.
void publish_and_die(KeyValueStore& store, const Endpoint& self) {
  const auto ignore = [] {};
  auto peers = NetworkPeers::create(self, {}, {ignore, ignore}, [](ConnectedPeer) {});
  CHECK_OK(peers);
  CHECK_OK(store.set("network/1", peers.value()->address().encode()));
  CHECK_OK(store.set("endpoint/1", self.encode()));
  CHECK_OK(store.get("network/0", soon()).status());
  CHECK_EQ(raise(SIGKILL), 0);
}

NetworkAddress address_of_a_dead_process() {
  SharedStore store;
  ChildProcess other([&] { publish_and_die(store, {.socket = "none"}); });
  Result<std::string> text = store.get("network/1", soon());
  CHECK_OK(text);
  CHECK_OK(store.set("network/0", ""));
  other.expect_killed_by(SIGKILL);
  Result<NetworkAddress> address = NetworkAddress::decode(text.value());
  CHECK_OK(address);
  CHECK(!address.value().listeners.empty());
  return address.value();
}

TEST(network_notices_a_death_before_the_connection) {
  SharedStore store;
  ChildProcess other([&] {
    publish_and_die(store,
                    {.engine = {0, 1}, .host = host_identity("b").value(), .socket = "none"});
  });
  const Result<Membership> joined =
      mesh_on("a")->join(store, 0, 2, Deadline::after(std::chrono::minutes(10)));
  CHECK_EQ(joined.status().code(), StatusCode::kPeerLost);
  expect_text(joined.status().message(), {"rank 0 could not connect to rank 1", " on host "});
  other.expect_killed_by(SIGKILL);
}

// Stands for a process that is to be connected to.
struct Acceptor {
  explicit Acceptor(const Endpoint& self, const ucx::NetworkOptions& options = {}) {
    auto created = NetworkPeers::create(self, options, {[] {}, [] {}}, [this](ConnectedPeer peer) {
      link = std::move(peer.link);
      ++connected;
    });
    CHECK_OK(created);
    peers = std::move(created.value());
  }
  NetworkAddress address() const { return peers->address(); }

  std::shared_ptr<Link> link;
  std::atomic<int> connected{0};
  std::unique_ptr<NetworkPeers> peers;  // last: its thread uses the rest
};

const Endpoint kAcceptor{.engine = {2, 2}, .knock = {3, 3}, .welcome = {4, 4}, .socket = "none"};

// Connects to kAcceptor, which is found at the addresses one after the other, and then at the last.
Result<ConnectedPeer> connect_at(NetworkPeers& self, const std::vector<NetworkAddress>& addresses,
                                 Deadline deadline) {
  size_t found = 0;
  const Noticeboard board{
      .publish = [](const NetworkAddress&) { return Status(); },
      .find = [&](Deadline) { return Result(addresses[std::min(found++, addresses.size() - 1)]); },
      .hope = [] { return Status(); }};
  Result<ConnectedPeer> peer = self.connect(kAcceptor, board, deadline);
  CHECK_GE(found, addresses.size());
  return peer;
}

void expect_connected(const ConnectedPeer& peer, const Acceptor& acceptor) {
  await([&] { return acceptor.connected != 0; }, soon());
  Received received;
  const std::string text = "hello";
  CHECK(peer.link->try_send(std::as_bytes(std::span(text)), {}));
  poll_until(*acceptor.link, received, [&] { return !received.records.empty(); });
  CHECK_EQ(received.records[0], text);
  CHECK_EQ(acceptor.connected.load(), 1);
}

// To UCX there is no difference between a process that is dead and a network that is down, so the
// address of the one stands for the other, with a process that lives where one looks for it.
TEST(network_connects_as_soon_as_there_is_a_way) {
  NetworkAddress nowhere = address_of_a_dead_process();
  Acceptor acceptor(kAcceptor);
  Acceptor self({.engine = {1, 1}, .socket = "none"});
  nowhere.listeners = acceptor.address().listeners;
  // Each attempt looks twice.
  const Result<ConnectedPeer> peer =
      connect_at(*self.peers, {nowhere, nowhere, nowhere, nowhere, acceptor.address()}, soon());
  CHECK_OK(peer);
  expect_connected(peer.value(), acceptor);
}

TEST(network_without_a_way_is_an_error_at_the_deadline) {
  NetworkAddress nowhere = address_of_a_dead_process();
  Acceptor acceptor(kAcceptor);
  Acceptor self({.engine = {1, 1}, .socket = "none"});
  nowhere.listeners = acceptor.address().listeners;
  const Deadline deadline = Deadline::after(std::chrono::seconds(2));
  const Status status = connect_at(*self.peers, {nowhere, nowhere, nowhere}, deadline).status();
  CHECK(deadline.passed(now_ns()));
  CHECK_EQ(status.code(), StatusCode::kTimedOut);
  expect_text(status.message(), {"to host " + host_name() + " (UCX", " Timed out connecting: ",
                                 "its process on host ", "(UCX error -80)"});
}

TEST(network_without_a_way_is_an_error_long_before_the_deadline) {
  NetworkAddress nowhere = address_of_a_dead_process();
  ucx::NetworkOptions options;
  options.unreachable = std::chrono::seconds(1);
  Acceptor acceptor(kAcceptor);
  Acceptor self({.engine = {1, 1}, .socket = "none"}, options);
  nowhere.listeners = acceptor.address().listeners;
  const Deadline deadline = Deadline::after(std::chrono::minutes(10));
  const Status status = connect_at(*self.peers, {nowhere, nowhere, nowhere}, deadline).status();
  CHECK_EQ(status.code(), StatusCode::kTimedOut);
  expect_text(status.message(), {" Timed out connecting: ", "(UCX error -80)"});
}

TEST(network_does_not_wait_for_the_dead) {
  const NetworkAddress dead = address_of_a_dead_process();
  Acceptor self({.engine = {1, 1}, .socket = "none"});
  const Status status =
      connect_at(*self.peers, {dead}, Deadline::after(std::chrono::minutes(10))).status();
  CHECK_EQ(status.code(), StatusCode::kPeerLost);
  expect_text(status.message(), {" on host " + host_name() + " has died: nobody listens"});
}

// Who has the greeting, but whose answer does not count, has half a link: it comes to nothing. It
// is there, and so waited for.
TEST_WITHIN(network_begins_anew_where_a_greeting_is_not_answered, 60) {
  Endpoint stranger = kAcceptor;
  stranger.welcome = {5, 5};
  Acceptor mute(stranger);
  Acceptor acceptor(kAcceptor);
  ucx::NetworkOptions options;
  options.unreachable = std::chrono::seconds(1);
  Acceptor self({.engine = {1, 1}, .socket = "none"}, options);
  const Result<ConnectedPeer> peer =
      connect_at(*self.peers, {mute.address(), mute.address(), acceptor.address()},
                 Deadline::after(std::chrono::minutes(1)));
  CHECK_OK(peer);
  expect_connected(peer.value(), acceptor);
  CHECK_EQ(mute.connected.load(), 0);
}

TEST(network_connects_hosts_and_memory_what_is_within_one) {
  Members members({"a", "b", "a"});
  for (int from = 0; from < 3; ++from) {
    for (int to = 0; to < 3; ++to) {
      if (from == to) continue;
      const LinkReport& report = members.joined[from].reports[to];
      const bool near = from != 1 && to != 1;
      CHECK_EQ(report.transport, std::string(near ? "shm" : "ucx"));
      CHECK_EQ(members.link(from, to).transport(), report.transport);
      if (near) continue;
      expect_text(report.reason, {"another host, UCX 1.", "proven both ways"});
      expect_text(members.link(from, to).peer_name(),
                  {"process " + std::to_string(getpid()) + " on host "});
    }
  }
}

TEST(network_brings_records_in_order) {
  Members members({"a", "b"});
  constexpr int kRecords = 500;
  std::vector<std::string> sent;
  Received received;
  for (int i = 0; i < kRecords; ++i) {
    sent.push_back(std::to_string(i) + std::string(i * 37 % 9000, 'x'));
    const std::string& text = sent.back();
    const Segment body{const_cast<std::byte*>(reinterpret_cast<const std::byte*>(text.data())) + 1,
                       text.size() - 1};
    // Both sides poll, as engines do: room comes by progress.
    while (!members.link(0, 1).try_send(std::as_bytes(std::span(text)).first(1), {&body, 1})) {
      members.link(0, 1).receive();
      members.link(1, 0).receive();
      members.link(1, 0).poll_record(received);
    }
  }
  poll_until(members.link(1, 0), received, [&] { return received.records.size() == kRecords; });
  CHECK(received.records == sent);
}

TEST(network_bounds_chunks_by_level_and_returns_their_credit) {
  Members members({"a", "b"});
  Link& out = members.link(0, 1);
  Received received;
  std::vector<std::byte> data(out.chunk_bytes());
  fill_random(data);
  const Segment piece{data.data(), data.size()};
  uint64_t put = 0;
  while (out.try_put(3, {7, put}, {&piece, 1})) ++put;
  CHECK(put >= 2);
  CHECK(out.can_put(0, data.size()));  // other levels have windows of their own
  poll_until(members.link(1, 0), received, [&] { return received.chunks.size() == put; });
  for (uint64_t i = 0; i < put; ++i) {
    CHECK_EQ(received.tags[i].token, 7u);
    CHECK_EQ(received.tags[i].offset, i);
    CHECK(received.chunks[i] == data);
  }
  Received nothing;
  poll_until(out, nothing, [&] { return out.can_put(3, data.size()); });
}

TEST(network_places_chunks_when_the_caller_receives) {
  Members members({"a", "b"});
  Link& in = members.link(1, 0);
  Received placed;
  Received polled;
  in.set_chunk_sink(placed);
  std::vector<std::byte> data(members.link(0, 1).chunk_bytes());
  fill_random(data);
  const Segment piece{data.data(), data.size()};
  // The network's thread may be quicker, and then leaves the chunk for who polls.
  for (const Deadline limit = soon(); placed.chunks.empty();) {
    const size_t before = polled.chunks.size();
    CHECK(members.link(0, 1).try_put(3, {7, 5}, {&piece, 1}));
    while (placed.chunks.empty() && polled.chunks.size() == before) {
      CHECK(!limit.passed(now_ns()));
      in.receive();
      in.poll_chunk(3, polled);
    }
  }
  CHECK_EQ(placed.tags[0].token, 7u);
  CHECK_EQ(placed.tags[0].offset, 5u);
  CHECK(placed.chunks[0] == data);
  // Its credit comes, too: what fits no window goes only when nothing is on its way.
  Received nothing;
  poll_until(members.link(0, 1), nothing,
             [&] { return members.link(0, 1).can_put(3, 10'000 * data.size()); });
}

TEST(network_leaves_what_its_thread_receives_to_who_polls) {
  Members members({"a", "b"});
  Received placed;
  Received polled;
  members.link(1, 0).set_chunk_sink(placed);
  std::vector<std::byte> data(1000);
  const Segment piece{data.data(), data.size()};
  CHECK(members.link(0, 1).try_put(3, {7, 5}, {&piece, 1}));
  for (const Deadline limit = soon(); !members.link(1, 0).poll_chunk(3, polled);) {
    CHECK(!limit.passed(now_ns()));
  }
  CHECK(placed.chunks.empty());
}

TEST(network_keeps_the_order_of_chunks_whoever_receives_them) {
  Members members({"a", "b"});
  Link& out = members.link(0, 1);
  Link& in = members.link(1, 0);
  constexpr uint64_t kChunks = 400;
  Received received;
  in.set_chunk_sink(received);
  std::vector<std::byte> data(out.chunk_bytes());
  const Segment piece{data.data(), data.size()};
  uint64_t put = 0;
  const Deadline limit = soon();
  for (int round = 0; received.tags.size() < kChunks; ++round) {
    CHECK(!limit.passed(now_ns()));
    out.receive();
    while (put < kChunks && out.try_put(2, {7, put}, {&piece, 1})) ++put;
    // Time for the network's thread, now and then.
    if (round % 7 == 0) std::this_thread::sleep_for(milliseconds(2));
    in.receive();
    if (round % 3 == 0) in.poll_chunk(2, received);
  }
  for (uint64_t i = 0; i < kChunks; ++i) CHECK_EQ(received.tags[i].offset, i);
}

TEST(network_says_who_closed_its_end) {
  Members members({"a", "b"});
  members.meshes[1].reset();
  await_failure(members.link(0, 1), {"process ", " on host ", " closed its end"});
  // Sending to nobody harms nothing.
  const std::string text = "hello";
  CHECK(members.link(0, 1).try_send(std::as_bytes(std::span(text)), {}));
}

// While the other one still sends: what it has not read then must not cost what it has sent.
TEST_WITHIN(network_loses_nothing_of_who_leaves, 100) {
  for (int round = 0; round < 20; ++round) {
    Members members({"a", "b"});
    std::atomic<bool> over{false};
    std::thread talker([&] {
      const std::vector<std::byte> record(8000);
      while (!over && !members.link(1, 0).failed()) {
        members.link(1, 0).try_send(record, {});
        members.link(1, 0).receive();
      }
    });
    Link& leaving = members.link(0, 1);
    std::vector<std::byte> data(leaving.chunk_bytes());
    fill_random(data);
    const Segment piece{data.data(), data.size()};
    uint64_t put = 0;  // more than TCP takes at once
    for (int level = 0; level < kPriorityLevels; ++level) {
      while (leaving.try_put(level, {7, put}, {&piece, 1})) ++put;
    }
    members.meshes[0].reset();
    over = true;
    talker.join();
    Received received;
    poll_until(members.link(1, 0), received, [&] { return received.chunks.size() == put; });
    for (const auto& chunk : received.chunks) CHECK(chunk == data);
  }
}

TEST(network_says_why_a_link_was_given_up) {
  Members members({"a", "b"});
  members.link(1, 0).give_up(Status::peer_lost("it talks nonsense"));
  await_failure(members.link(0, 1), {" has given up the link: it talks nonsense"});
}

TEST(network_groups_share_one_link) {
  Members members({"a", "b"});
  MemoryStore second;
  Membership theirs;
  std::thread other([&] { theirs = join(*members.meshes[1], second, 0, 2); });
  const Membership ours = join(*members.meshes[0], second, 1, 2);
  other.join();
  CHECK(ours.links[0] == members.joined[0].links[1]);
  CHECK(theirs.links[1] == members.joined[1].links[0]);
}

TEST(network_address_survives_the_store) {
  const sockaddr_in v4{.sin_family = AF_INET, .sin_port = 1, .sin_addr = {2}, .sin_zero = {}};
  const NetworkAddress address{"1.22.0",
                               "a host",
                               std::string("\0\x7f\xff", 3),
                               42,
                               {SocketAddress(reinterpret_cast<const char*>(&v4), sizeof(v4))}};
  const Result<NetworkAddress> decoded = NetworkAddress::decode(address.encode());
  CHECK_OK(decoded);
  CHECK_EQ(decoded.value().version, address.version);
  CHECK_EQ(decoded.value().host, address.host);
  CHECK(decoded.value().worker == address.worker);
  CHECK_EQ(decoded.value().place, address.place);
  CHECK(decoded.value().listeners == address.listeners);
  for (const char* bad :
       {"", "freescale-ucx2", "freescale-ucx2 1.22 00 0 1", "freescale-ucx2 1 0 gg 1",
        "freescale-ucx2 1.22 00 00", "freescale-ucx2 1.22 00 00 x",
        "freescale-ucx2 1.22 00 00 1 0200", "freescale-ucx9 1.22.0 00 00 1"}) {
    CHECK_EQ(NetworkAddress::decode(bad).status().code(), StatusCode::kMismatch);
  }
}

}  // namespace
}  // namespace freescale::testing
