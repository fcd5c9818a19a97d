// What a hostile process answers while two processes agree on a link: the Hello and Ready that the
// acceptor gets, and the Welcome that the connector gets, each with descriptors. Nothing may be
// kept of what was refused, and a link that was agreed on must stand what lies in its memory.

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <new>
#include <thread>

#include "cpp/base/random.h"
#include "cpp/rendezvous/shm_handshake_messages.h"
#include "tests/cpp/processes.h"
#include "tests/fuzz/input.h"

namespace freescale::fuzz {
namespace {

using testing::Footprint;

constexpr size_t kLongest = 4096;  // message
constexpr ShmGeometry kSmall{.mailbox_bytes = 4096, .chunks = {.chunk_bytes = 4096, .chunks = 3}};

template <typename T>
T must(Result<T> result) {
  require(result.ok());
  return std::move(result.value());
}

Deadline soon() { return Deadline::after(std::chrono::seconds(5)); }

// What a mesh presents.
struct Side {
  Side() {
    new (doorbell.data()) Doorbell();
    identity.doorbell = &doorbell;
    for (auto* id :
         {&identity.endpoint.engine, &identity.endpoint.knock, &identity.endpoint.welcome}) {
      *id = {random_u64(), random_u64()};
    }
  }
  SharedMemory doorbell = must(SharedMemory::create("doorbell", 4096));
  LocalIdentity identity;
};

std::vector<std::byte> copy_of(const auto& message) {
  const auto bytes = std::as_bytes(std::span(&message, 1));
  return {bytes.begin(), bytes.end()};
}

// The descriptors that a message can carry.
class Descriptors {
 public:
  explicit Descriptors(const SharedMemory& memory, const SharedMemory& doorbell)
      : choices_{memory.fd(), doorbell.fd(), unsealed_.get(), no_memory_.get()} {}
  int choose(Input& input) const { return choices_[input.below(std::size(choices_))]; }

 private:
  UniqueFd unsealed_{memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  UniqueFd no_memory_{open("/dev/null", O_RDWR | O_CLOEXEC)};
  const int choices_[4];
};

// Sends `message` with a few of its bytes, its length and its descriptors changed.
void send_forged(int socket, std::vector<std::byte> message, std::vector<int> fds,
                 const Descriptors& descriptors, Input& input) {
  for (size_t changes = input.below(4); changes > 0; --changes) {
    const size_t place = input.below(message.size());
    const uint64_t value = input.number();
    std::memcpy(message.data() + place, &value, std::min(sizeof(value), message.size() - place));
  }
  if (input.below(4) == 1) message.resize(input.below(256));
  if (input.below(4) == 1) fds.resize(input.below(5));
  for (int& fd : fds) {
    if (fd == 0 || input.below(8) == 1) fd = descriptors.choose(input);
  }
  static_cast<void>(send_message(socket, message, fds));
}

class Ignores : public LinkSink {
 public:
  void on_record(std::span<const std::byte>) override {}
  void on_chunk(const ChunkTag&, std::span<const std::byte>) override {}
};

void use(const ConnectedPeer& peer) {
  Ignores sink;
  for (int i = 0; i < 3; ++i) static_cast<void>(peer.link->poll_record(sink));
  for (int level = 0; level < kPriorityLevels; ++level) {
    static_cast<void>(peer.link->poll_chunk(level, sink));
    static_cast<void>(peer.link->can_put(level, 10));
  }
  const std::byte word[8] = {};
  static_cast<void>(peer.link->try_send(word, {}));
  peer.link->notify();
}

// ---- The acceptor's side -----------------------------------------------------------------------

class HostileConnector {
 public:
  HostileConnector() {
    hello_ = {kHandshakeMagic, EngineId{1, 2}, acceptor_.identity.endpoint.knock, kSmall, 99, 0, 0};
    std::memcpy(memory_.data() + kSmall.link_bytes(), &hello_.probe, sizeof(hello_.probe));
  }

  // Whether they agreed on a link.
  bool talk(Input& input) {
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
    const UniqueFd mine(ends[0]);
    ShmAcceptor acceptor(UniqueFd(ends[1]), soon());
    send_forged(mine.get(), copy_of(hello_), {memory_.fd(), doorbell_.fd()}, descriptors_, input);
    for (int messages = 0; messages < 3; ++messages) {
      const auto step = acceptor.on_readable(acceptor_.identity);
      if (!step.ok()) return false;
      if (step.value().has_value()) {
        use(*step.value());
        return true;
      }
      answer(mine.get(), input);
    }
    return false;
  }

 private:
  void answer(int socket, Input& input) {
    const Result<SocketMessage> welcome = receive_message(socket, kLongest, Deadline::at(0));
    Ready ready{kHandshakeMagic, 0};
    if (welcome.ok() && welcome.value().bytes.size() == sizeof(Welcome)) {
      std::memcpy(&ready.probe_seen, welcome.value().bytes.data() + offsetof(Welcome, probe),
                  sizeof(ready.probe_seen));
    }
    send_forged(socket, copy_of(ready), {}, descriptors_, input);
  }

  Side acceptor_;
  SharedMemory memory_ = must(SharedMemory::create("link", kSmall.link_bytes() + kProbeBytes));
  SharedMemory doorbell_ = must(SharedMemory::create("doorbell", 4096));
  Descriptors descriptors_{memory_, doorbell_};
  Hello hello_;
};

// ---- The connector's side ----------------------------------------------------------------------

class HostileAcceptor {
 public:
  HostileAcceptor() : listener_(must(listen_unix(&acceptor_.identity.endpoint.socket))) {}

  bool talk(Input& input) {
    std::thread answering([&] { answer(input); });
    const Result<ConnectedPeer> peer = connect_shm(connector_.identity, acceptor_.identity.endpoint,
                                                   kSmall, soon(), [] { return Status(); });
    answering.join();
    socket_.reset();
    if (peer.ok()) use(peer.value());
    return peer.ok();
  }

 private:
  void answer(Input& input) {
    pollfd waited{listener_.get(), POLLIN, 0};
    while (poll(&waited, 1, 5000) < 0 && errno == EINTR) {  // libFuzzer has a timer
    }
    socket_ = UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const Result<SocketMessage> message = receive_message(socket_.get(), kLongest, soon());
    if (!message.ok()) return;
    require(message.value().bytes.size() == sizeof(Hello) && message.value().fds.size() == 2);
    Hello hello;
    std::memcpy(&hello, message.value().bytes.data(), sizeof(hello));
    Welcome welcome{kHandshakeMagic, acceptor_.identity.endpoint.welcome, hello.probe, 77, 0, 0};
    const off_t place = static_cast<off_t>(kSmall.link_bytes() + kProbeBytes / 2);
    const int memory = message.value().fds[0].get();
    require(pwrite(memory, &welcome.probe, sizeof(welcome.probe), place) == sizeof(welcome.probe));
    scribble(memory, input);
    send_forged(socket_.get(), copy_of(welcome), {acceptor_.doorbell.fd()}, descriptors_, input);
  }

  // Leaves something in the lanes.
  static void scribble(int memory, Input& input) {
    for (size_t words = input.below(4); words > 0; --words) {
      const auto place = static_cast<off_t>(input.below(kSmall.link_bytes() / 8) * 8);
      const uint64_t value = input.number();
      require(pwrite(memory, &value, sizeof(value), place) == sizeof(value));
    }
  }

  Side acceptor_;
  Side connector_;
  UniqueFd listener_;
  UniqueFd socket_;  // open until the connector is done
  Descriptors descriptors_{acceptor_.doorbell, acceptor_.doorbell};
};

struct Processes {
  HostileConnector connector;
  HostileAcceptor acceptor;
};

Processes& processes() {
  static Processes both;
  return both;
}

// All zeros change nothing: both talks must lead to a link, or this file knows the messages
// wrongly.
bool honest_handshake_works() {
  Input nothing(nullptr, 0);
  return processes().connector.talk(nothing) && processes().acceptor.talk(nothing);
}

}  // namespace
}  // namespace freescale::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace freescale::fuzz;
  static const bool works = honest_handshake_works();
  require(works);
  // Not the threads: one that was joined may still be listed.
  const size_t before = Footprint::now().descriptors;
  Input input(data, size);
  if (input.below(2) == 0) {
    processes().connector.talk(input);
  } else {
    processes().acceptor.talk(input);
  }
  require(Footprint::now().descriptors == before);
  return 0;
}
