#include "tests/cpp/link_pair.h"

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <new>
#include <thread>
#include <utility>

#include "cpp/base/random.h"
#include "cpp/rendezvous/shm_handshake.h"
#include "cpp/transport/emulated_nic.h"
#include "cpp/transport/paced_link.h"
#include "tests/cpp/check.h"

namespace freescale::testing {
namespace {

// What a mesh holds, without its thread.
struct Side {
  Side() {
    Result<SharedMemory> memory = SharedMemory::create("doorbell", 4096);
    CHECK_OK(memory);
    doorbell_memory = std::move(memory.value());
    identity.doorbell = &doorbell_memory;
    for (auto* id :
         {&identity.endpoint.engine, &identity.endpoint.knock, &identity.endpoint.welcome}) {
      *id = {random_u64(), random_u64()};
    }
  }
  Doorbell* doorbell() { return new (doorbell_memory.data()) Doorbell(); }

  SharedMemory doorbell_memory;
  LocalIdentity identity;
  ConnectedPeer peer;
};

ConnectedPeer accept_from(const UniqueFd& listener, const LocalIdentity& self) {
  pollfd waited{listener.get(), POLLIN, 0};
  CHECK_EQ(poll(&waited, 1, 5000), 1);
  UniqueFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  CHECK(socket.valid());
  ShmAcceptor acceptor(std::move(socket), Deadline::after(std::chrono::seconds(5)));
  while (true) {
    waited.fd = acceptor.socket();
    CHECK_EQ(poll(&waited, 1, 5000), 1);
    Result<std::optional<ConnectedPeer>> step = acceptor.on_readable(self);
    CHECK_OK(step);
    if (step.value().has_value()) return std::move(*step.value());
  }
}

// Far beyond any chunk's time at each look: so that the suite, which takes what is refused for
// full, has all that a card ever holds back.
Nanoseconds leaping_clock() {
  static std::atomic<Nanoseconds> time{0};
  return time += 1'000'000'000;
}

// Through the real handshake, between two threads of this process.
class ShmPair : public LinkPair {
 public:
  ShmPair() {
    left.doorbell = left_.doorbell();
    right.doorbell = right_.doorbell();
    Result<UniqueFd> listener = listen_unix(&right_.identity.endpoint.socket);
    CHECK_OK(listener);
    std::thread accepting([&] { right_.peer = accept_from(listener.value(), right_.identity); });
    Result<ConnectedPeer> connected =
        connect_shm(left_.identity, right_.identity.endpoint, ShmGeometry{},
                    Deadline::after(std::chrono::seconds(5)), [] { return Status(); });
    accepting.join();
    CHECK_OK(connected);
    left_.peer = std::move(connected.value());
    left.link = left_.peer.link;
    right.link = right_.peer.link;
  }

 private:
  Side left_;
  Side right_;
};

class PacedShmPair : public ShmPair {
 public:
  PacedShmPair() {
    for (End* end : {&left, &right}) {
      const auto nic = std::make_shared<EmulatedNic>(uint64_t{1} << 40, leaping_clock);
      end->link = std::make_shared<PacedLink>(end->link, nic);
    }
  }
};

}  // namespace

const std::vector<LinkMaker>& link_makers() {
  static const std::vector<LinkMaker> makers = {
      {"shm", [] { return std::unique_ptr<LinkPair>(new ShmPair); }},
      {"paced shm", [] { return std::unique_ptr<LinkPair>(new PacedShmPair); }},
  };
  return makers;
}

}  // namespace freescale::testing
