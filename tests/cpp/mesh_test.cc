#include "cpp/rendezvous/mesh.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "cpp/base/random.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/rendezvous/host_identity.h"
#include "cpp/rendezvous/unix_socket.h"
#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/ranks.h"

namespace freescale::testing {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

std::unique_ptr<Mesh> new_mesh() {
  Result<std::unique_ptr<Mesh>> mesh = Mesh::create();
  CHECK_OK(mesh);
  return std::move(mesh.value());
}

// Of a process of this host.
Endpoint endpoint_here() {
  Endpoint endpoint;
  endpoint.host = host_identity("").value();
  return endpoint;
}

// Two meshes that have joined as ranks 0 and 1.
struct Pair {
  Pair() {
    std::thread other([&] { theirs = join(*their_mesh, store, 1, 2); });
    ours = join(*our_mesh, store, 0, 2);
    other.join();
  }
  MemoryStore store;
  std::unique_ptr<Mesh> our_mesh = new_mesh();
  std::unique_ptr<Mesh> their_mesh = new_mesh();
  Membership ours;
  Membership theirs;
};

class OneRecord : public LinkSink {
 public:
  void on_record(std::span<const std::byte> record) override {
    text.assign(reinterpret_cast<const char*>(record.data()), record.size());
  }
  void on_chunk(const ChunkTag&, std::span<const std::byte>) override { CHECK(false); }
  std::string text;
};

std::string talk(Link& from, Link& to, const std::string& text) {
  CHECK(from.try_send(std::as_bytes(std::span(text)), {}));
  OneRecord sink;
  CHECK(to.poll_record(sink));
  return sink.text;
}

void await_failure(const Link& link) {
  await([&] { return link.failed(); }, soon());
}

TEST(mesh_connects_every_pair) {
  constexpr int kSize = 5;
  MemoryStore store;
  std::vector<Membership> members(kSize);
  std::vector<std::unique_ptr<Mesh>> meshes;
  for (int rank = 0; rank < kSize; ++rank) meshes.push_back(new_mesh());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] { members[rank] = join(*meshes[rank], store, rank, kSize); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int a = 0; a < kSize; ++a) {
    CHECK_EQ(members[a].group_id, members[0].group_id);
    CHECK(members[a].links[a] == nullptr);
    CHECK_EQ(members[a].reports[a].transport, std::string("self"));
    for (int b = 0; b < kSize; ++b) {
      if (a == b) continue;
      CHECK_EQ(members[a].reports[b].rank, b);
      CHECK_EQ(members[a].reports[b].transport, std::string("shm"));
      CHECK_NE(members[a].reports[b].reason.find("shared memory proven"), std::string::npos);
      const std::string text = std::to_string(a) + " to " + std::to_string(b);
      CHECK_EQ(talk(*members[a].links[b], *members[b].links[a], text), text);
    }
  }
}

TEST(mesh_of_one_rank_needs_nobody) {
  MemoryStore store;
  const auto mesh = new_mesh();
  const Membership alone = join(*mesh, store, 0, 1);
  CHECK_EQ(alone.links.size(), 1u);
}

TEST(mesh_groups_share_one_link) {
  Pair pair;
  const Footprint before = Footprint::now();
  MemoryStore second;
  Membership theirs;
  // The other way round: rank numbers differ between groups.
  std::thread other([&] { theirs = join(*pair.their_mesh, second, 0, 2); });
  const Membership ours = join(*pair.our_mesh, second, 1, 2);
  other.join();
  CHECK(ours.links[0] == pair.ours.links[1]);
  CHECK(theirs.links[1] == pair.theirs.links[0]);
  CHECK_NE(ours.group_id, pair.ours.group_id);
  expect_footprint(before);
}

TEST(mesh_names_every_missing_rank) {
  MemoryStore store;
  // Rank 2 is there. It does not join beside: whoever gives up first tells the other.
  Endpoint present = endpoint_here();
  CHECK_OK(listen_unix(&present.socket));
  CHECK_OK(store.set("endpoint/2", present.encode()));
  const auto mesh = new_mesh();
  const Result<Membership> joined = mesh->join(store, 1, 5, Deadline::after(milliseconds(200)));
  CHECK_EQ(joined.status().code(), StatusCode::kTimedOut);
  CHECK_EQ(joined.status().message(),
           std::string("rank 1 Timed out waiting for rank 0, 3, 4 of 5 to join the group"));
}

// Announced itself in the store, then never answers: the socket exists, nobody accepts.
TEST(mesh_times_out_on_a_silent_rank) {
  for (const uint64_t engine : {uint64_t{0}, ~uint64_t{0}}) {  // it would connect, or we
    MemoryStore store;
    Endpoint silent = endpoint_here();
    silent.engine = {engine, engine};
    Result<UniqueFd> listener = listen_unix(&silent.socket);
    CHECK_OK(listener);
    CHECK_OK(store.set("endpoint/1", silent.encode()));
    const auto mesh = new_mesh();
    const Nanoseconds start = now_ns();
    const Result<Membership> joined = mesh->join(store, 0, 2, Deadline::after(milliseconds(200)));
    CHECK_LT(now_ns() - start, 5'000'000'000);
    CHECK_EQ(joined.status().code(), StatusCode::kTimedOut);
    const std::string text = joined.status().message();
    CHECK_NE(text.find("rank 0 could not connect to rank 1"), std::string::npos);
    CHECK_NE(text.find(" Timed out "), std::string::npos);
  }
}

TEST(mesh_reports_a_rank_that_is_gone) {
  for (const uint64_t engine : {uint64_t{0}, ~uint64_t{0}}) {  // it would connect, or we
    MemoryStore store;
    Endpoint gone = endpoint_here();
    gone.engine = {engine, engine};
    {
      CHECK_OK(listen_unix(&gone.socket));
    }
    CHECK_OK(store.set("endpoint/1", gone.encode()));
    const auto mesh = new_mesh();
    const Result<Membership> joined = mesh->join(store, 0, 2, Deadline::never());
    CHECK_EQ(joined.status().code(), StatusCode::kPeerLost);
    expect_text(joined.status().message(),
                {"rank 0 could not connect to rank 1", "its process has ended"});
  }
}

// A rank that cannot take part says so in the place of its endpoint, before or after it gave that.
TEST(mesh_reports_a_rank_that_refuses) {
  for (const bool late : {false, true}) {
    MemoryStore store;
    Endpoint endpoint = endpoint_here();  // the smaller id: it would connect
    const Result<UniqueFd> listener = listen_unix(&endpoint.socket);
    CHECK_OK(listener);
    if (late) CHECK_OK(store.set("endpoint/1", endpoint.encode()));
    std::thread refusing([&] {
      if (late) std::this_thread::sleep_for(milliseconds(50));
      Mesh::refuse(store, 1, "no memory \xff left");
    });
    const auto mesh = new_mesh();
    const Result<Membership> joined = mesh->join(store, 0, 2, Deadline::never());
    refusing.join();
    CHECK_EQ(joined.status().code(), StatusCode::kCancelled);
    expect_text(joined.status().message(),
                {"rank 0 could not connect to rank 1: it gave up: no memory ? left"});
  }
}

// It says so, and its socket is gone by the time that others connect.
TEST(mesh_believes_a_refusal_more_than_a_closed_socket) {
  Endpoint endpoint = endpoint_here();
  endpoint.engine = {~uint64_t{0}, 0};  // the greater id: we connect
  {
    CHECK_OK(listen_unix(&endpoint.socket));
  }
  // As if the refusal had come between reading the endpoint and connecting.
  class ChangesItsMind : public MemoryStore {
   public:
    Result<std::string> get(const std::string& key, Deadline deadline) override {
      Result<std::string> value = MemoryStore::get(key, deadline);
      if (key == "endpoint/1") CHECK_OK(set(key, Endpoint::encode_refusal("no memory")));
      return value;
    }
  } store;
  CHECK_OK(store.set("endpoint/1", endpoint.encode()));
  const Result<Membership> joined = new_mesh()->join(store, 0, 2, soon());
  CHECK_EQ(joined.status().code(), StatusCode::kCancelled);
  expect_text(joined.status().message(), "it gave up: no memory");
}

// Who fails to join tells all others, so that they do not wait for it.
TEST(mesh_passes_on_why_a_rank_failed) {
  MemoryStore store;
  CHECK_OK(store.set("endpoint/2", Endpoint::encode_refusal("broken")));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto mesh = new_mesh();
      const Result<Membership> joined = mesh->join(store, rank, 3, Deadline::never());
      CHECK_EQ(joined.status().code(), StatusCode::kCancelled);
      expect_text(joined.status().message(), {"rank 2", "it gave up: broken"});
      const Result<std::string> left = store.get("endpoint/" + std::to_string(rank), soon());
      CHECK_OK(left);
      CHECK_EQ(Endpoint::decode(left.value()).status().code(), StatusCode::kCancelled);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(mesh_refuses_endpoints_of_another_version) {
  for (const char* text : {"", "freescale1 0", "freescale2 00", "\x01\x02\x03"}) {
    MemoryStore store;
    CHECK_OK(store.set("endpoint/1", text));
    const auto mesh = new_mesh();
    const Result<Membership> joined = mesh->join(store, 0, 2, soon());
    CHECK_EQ(joined.status().code(), StatusCode::kMismatch);
  }
}

TEST(mesh_refuses_two_ranks_in_one_mesh) {
  MemoryStore store;
  const auto mesh = new_mesh();
  Result<Membership> second = Membership{};
  std::thread other([&] { second = mesh->join(store, 1, 2, soon()); });
  const Result<Membership> first = mesh->join(store, 0, 2, soon());
  other.join();
  // The slower one may hear it from the other.
  for (const Status& status : {first.status(), second.status()}) {
    expect_text(status.message(), "two ranks of the group share one process");
  }
}

// What the store says of a mesh: where strangers may knock.
Endpoint endpoint_of(Mesh& mesh) {
  MemoryStore store;
  join(mesh, store, 0, 1);
  Result<std::string> text = store.get("endpoint/0", soon());
  CHECK_OK(text);
  Result<Endpoint> endpoint = Endpoint::decode(text.value());
  CHECK_OK(endpoint);
  return endpoint.value();
}

UniqueFd knock_at(const Endpoint& endpoint) {
  Result<UniqueFd> socket = connect_unix(endpoint.socket, soon());
  CHECK_OK(socket);
  return std::move(socket.value());
}

void expect_hang_up(const UniqueFd& socket) {
  const Result<SocketMessage> answer = receive_message(socket.get(), 1000, soon());
  CHECK_EQ(answer.status().code(), StatusCode::kPeerLost);
}

TEST(mesh_is_not_disturbed_by_strangers) {
  Pair pair;
  const Footprint before = Footprint::now();
  const Endpoint endpoint = endpoint_of(*pair.our_mesh);
  const int stdin_four_times[] = {0, 0, 0, 0};
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> noise(1 + round * 13 % 300);
    fill_random(noise);
    const UniqueFd socket = knock_at(endpoint);
    const auto fds = std::span(stdin_four_times).first(round % 5);
    CHECK_OK(send_message(socket.get(), noise, fds));
    expect_hang_up(socket);
  }
  {  // longer than any message
    const UniqueFd socket = knock_at(endpoint);
    CHECK_OK(send_message(socket.get(), std::vector<std::byte>(100'000), {}));
    expect_hang_up(socket);
  }
  {
    const UniqueFd silent_and_gone = knock_at(endpoint);
  }
  const UniqueFd silent = knock_at(endpoint);

  CHECK_EQ(talk(*pair.ours.links[1], *pair.theirs.links[0], "still here"),
           std::string("still here"));
  MemoryStore store;
  const auto third = new_mesh();
  std::thread other([&] { join(*third, store, 1, 2); });
  join(*pair.our_mesh, store, 0, 2);
  other.join();
  CHECK(!pair.ours.links[1]->failed());
  // None of a stranger's stays: new are the ends of `silent`, the third mesh's four, and a socket
  // and a pidfd for each end of its link.
  CHECK_EQ(Footprint::now().descriptors, before.descriptors + 2 + 4 + 4);
}

TEST(mesh_closes_what_strangers_send) {
  const auto mesh = new_mesh();
  const Endpoint endpoint = endpoint_of(*mesh);
  const Footprint before = Footprint::now();
  for (int round = 0; round < 20; ++round) {
    // More descriptors than a message may have: the kernel drops the rest, the mesh all others.
    const UniqueFd socket = knock_at(endpoint);
    iovec content{const_cast<char*>("hello"), 5};
    alignas(cmsghdr) char control[CMSG_SPACE(20 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &content;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(20 * sizeof(int));
    CHECK_EQ(sendmsg(socket.get(), &header, MSG_NOSIGNAL), 5);
    expect_hang_up(socket);
  }
  expect_footprint(before);
}

// It looks like the end of the stream, but its descriptors have arrived.
TEST(mesh_closes_what_comes_with_an_empty_message) {
  const auto mesh = new_mesh();
  const Endpoint endpoint = endpoint_of(*mesh);
  const Footprint before = Footprint::now();
  const int stdin_twice[] = {0, 0};
  for (int round = 0; round < 20; ++round) {
    const UniqueFd socket = knock_at(endpoint);
    CHECK_OK(send_message(socket.get(), {}, stdin_twice));
    expect_hang_up(socket);
  }
  expect_footprint(before);
}

// Everything right but the secret.
TEST(mesh_refuses_a_wrong_secret) {
  MemoryStore store;
  const auto theirs = new_mesh();
  Endpoint forged = endpoint_of(*theirs);
  forged.knock[0] ^= 1;
  // The side with the smaller id connects; make it ours.
  forged.engine = {~uint64_t{0}, ~uint64_t{0}};
  CHECK_OK(store.set("endpoint/1", forged.encode()));
  const auto ours = new_mesh();
  const Footprint before = Footprint::now();
  const Result<Membership> joined = ours->join(store, 0, 2, soon());
  CHECK_EQ(joined.status().code(), StatusCode::kPeerLost);
  expect_footprint(before);
}

TEST(mesh_refuses_an_impostor_that_accepts) {
  MemoryStore store;
  const auto theirs = new_mesh();
  Endpoint forged = endpoint_of(*theirs);
  forged.welcome[1] ^= 1;  // the store says that the real rank would answer with this
  forged.engine = {~uint64_t{0}, ~uint64_t{0}};
  CHECK_OK(store.set("endpoint/1", forged.encode()));
  const auto ours = new_mesh();
  const Result<Membership> joined = ours->join(store, 0, 2, soon());
  CHECK_EQ(joined.status().code(), StatusCode::kInvalidArgument);
  CHECK_NE(joined.status().message().find("did not prove"), std::string::npos);
}

TEST(mesh_leaves_nothing_behind) {
  {
    Pair warm_up;
  }
  const Footprint before = Footprint::now();
  {
    Pair pair;
  }
  expect_footprint(before);
  std::unique_ptr<Pair> pair = std::make_unique<Pair>();
  const std::shared_ptr<Link> kept = pair->ours.links[1];
  pair.reset();
  // A link that somebody holds is memory alone.
  expect_footprint(before);
}

TEST(mesh_tells_that_a_peer_closed) {
  Pair pair;
  CHECK(pair.theirs.links[0]->try_send(std::as_bytes(std::span("last words")), {}));
  const uint32_t ticket = pair.our_mesh->doorbell().prepare(Doorbell::kCaller, true);
  pair.their_mesh.reset();
  // Also wakes whoever waits.
  pair.our_mesh->doorbell().sleep(ticket, Doorbell::kCaller, -1);
  await_failure(*pair.ours.links[1]);
  CHECK_EQ(pair.ours.links[1]->failure().code(), StatusCode::kPeerLost);
  CHECK_EQ(pair.ours.links[1]->failure().message(),
           "process " + std::to_string(getpid()) + " closed its end");
  OneRecord sink;
  CHECK(pair.ours.links[1]->poll_record(sink));
  CHECK_EQ(sink.text, std::string("last words") + '\0');
}

TEST(mesh_tells_that_a_peer_gave_up_the_link) {
  Pair pair;
  const uint32_t ticket = pair.our_mesh->doorbell().prepare(Doorbell::kCaller, true);
  pair.theirs.links[0]->give_up(Status::peer_lost("it sent nonsense"));
  pair.theirs.links[0]->give_up(Status::peer_lost("and more of it"));
  pair.our_mesh->doorbell().sleep(ticket, Doorbell::kCaller, -1);
  await_failure(*pair.ours.links[1]);
  const std::string process = "process " + std::to_string(getpid());
  CHECK_EQ(pair.ours.links[1]->failure().message(),
           process + " has given up the link: it sent nonsense");
  CHECK_EQ(pair.theirs.links[0]->failure().message(), std::string("it sent nonsense"));
}

// A child forked by the peer, a data loader for instance, holds copies of the peer's sockets.
TEST(mesh_tells_that_a_peer_closed_though_its_child_lives) {
  SharedStore store;
  ChildProcess peer([&] {
    std::unique_ptr<Mesh> mesh = new_mesh();
    const Membership members = join(*mesh, store, 1, 2);
    const ChildProcess loader([] { pause(); });
    store.await("may close");
    mesh.reset();
    store.await("seen");
  });
  const auto mesh = new_mesh();
  const Membership members = join(*mesh, store, 0, 2);
  store.announce("may close");
  await_failure(*members.links[1]);
  CHECK_EQ(members.links[1]->failure().message(),
           "process " + std::to_string(peer.pid()) + " closed its end");
  store.announce("seen");
  peer.expect_success();
}

TEST_WITHIN(mesh_tells_that_a_peer_has_died, 60) {
  for (int round = 0; round < 10; ++round) {
    SharedStore store;
    ChildProcess peer([&] {
      const auto mesh = new_mesh();
      const Membership members = join(*mesh, store, 1, 2);
      store.announce("joined");
      pause();
    });
    const auto mesh = new_mesh();
    const Membership members = join(*mesh, store, 0, 2);
    store.await("joined");
    const pid_t pid = peer.pid();
    peer.signal(SIGKILL);
    await_failure(*members.links[1]);
    CHECK_EQ(members.links[1]->failure().code(), StatusCode::kPeerLost);
    CHECK_EQ(members.links[1]->failure().message(), "process " + std::to_string(pid) + " has died");
    peer.expect_killed_by(SIGKILL);
  }
}

// Sets the limit so that `more` descriptors can still be opened.
void allow_descriptors(rlim_t more) {
  const int next = dup(0);
  CHECK_GE(next, 0);
  close(next);
  rlimit limit{};
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = static_cast<rlim_t>(next) + more;
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

// However few it has: it says so at once, and the other rank hears of it.
TEST(mesh_says_when_it_runs_out_of_descriptors) {
  bool joined_at_last = false;
  for (rlim_t more = 0; more < 12 && !joined_at_last; ++more) {
    SharedStore store;
    ChildProcess poor([&] {
      allow_descriptors(more);
      Result<std::unique_ptr<Mesh>> mesh = Mesh::create();
      Status status = mesh.status();
      if (status.ok()) {
        status = mesh.value()->join(store, 0, 2, soon()).status();
      } else {
        Mesh::refuse(store, 0, status.message());
      }
      CHECK_OK(store.set("outcome", status.message()));
      store.await("outcome seen");
    });
    const auto mesh = new_mesh();
    const Result<Membership> ours = mesh->join(store, 1, 2, soon());
    const std::string text = store.get("outcome", soon()).value();
    store.announce("outcome seen");
    poor.expect_success();
    joined_at_last = text.empty();
    CHECK_EQ(ours.ok(), joined_at_last);
    if (joined_at_last) break;
    const bool clear = text.find("Too many open files") != std::string::npos ||
                       text.find("limit of open files") != std::string::npos;
    if (!clear) CHECK_EQ(text, std::string("a message about open files"));
    expect_text(ours.status().message(), "rank 1 could not connect to rank 0");
  }
  CHECK(joined_at_last);
}

TEST(mesh_waits_in_peace_for_a_descriptor) {
  SharedStore store;
  ChildProcess poor([&] {
    const auto mesh = new_mesh();
    CHECK_OK(store.set("endpoint", endpoint_of(*mesh).encode()));
    rlimit before{};
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const Footprint footprint = Footprint::now();
    CHECK_OK(store.get("knocks", soon()));
    allow_descriptors(0);
    store.announce("is poor");
    const auto start = cpu_time();
    std::this_thread::sleep_for(milliseconds(500));
    CHECK_LT((cpu_time() - start).count(), 80'000'000);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    store.await("was answered");
    expect_footprint(footprint);
  });
  const Result<std::string> text = store.get("endpoint", soon());
  CHECK_OK(text);
  const Result<Endpoint> endpoint = Endpoint::decode(text.value());
  CHECK_OK(endpoint);
  store.announce("knocks");
  store.await("is poor");
  {
    const UniqueFd socket = knock_at(endpoint.value());
    CHECK_OK(send_message(socket.get(), std::vector<std::byte>(10), {}));
    expect_hang_up(socket);
  }
  store.announce("was answered");
  poor.expect_success();
}

TEST(mesh_sleeps_when_nothing_happens) {
  Pair pair;
  const UniqueFd silent = knock_at(endpoint_of(*pair.our_mesh));
  const auto before = cpu_time();
  std::this_thread::sleep_for(milliseconds(500));
  CHECK_LT((cpu_time() - before).count(), 100'000'000);
}

}  // namespace
}  // namespace freescale::testing
