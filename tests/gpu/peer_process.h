#pragma once

#include <sys/types.h>

#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "cpp/base/clock.h"
#include "cpp/base/unique_fd.h"
#include "cpp/rendezvous/unix_socket.h"
#include "tests/gpu/finding.h"

namespace freescale::probe {

// One end of a socket between two processes of a probe. What fails ends the process: also that the
// other one has ended.
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  template <typename T>
  void send(const T& value, std::span<const int> fds = {}) const {
    require(
        send_message(socket_.get(), std::as_bytes(std::span(&value, 1)), fds, Deadline::never()));
  }
  // If the value may come with a descriptor, `fd` gets it.
  template <typename T>
  T receive(UniqueFd* fd = nullptr) const {
    SocketMessage message = require(receive_message(socket_.get(), sizeof(T), Deadline::never()));
    if (message.bytes.size() != sizeof(T)) give_up("a message of another size");
    if (fd != nullptr && !message.fds.empty()) *fd = std::move(message.fds[0]);
    T value;
    std::memcpy(&value, message.bytes.data(), sizeof(T));
    return value;
  }
  // A word to the other process that this one has come so far, and the wait for it.
  void tell() const { send('.'); }
  void hear() const { receive<char>(); }

 private:
  UniqueFd socket_;
};

// Another process, forked before this one uses the driver, which does not survive a fork. Ends with
// this one.
class PeerProcess {
 public:
  explicit PeerProcess(const std::function<void(const Channel&)>& body);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const Channel& channel() const { return channel_; }
  // Waits until its body has returned. The probe fails if it did not.
  void join();

 private:
  pid_t pid_ = -1;
  Channel channel_;
};

}  // namespace freescale::probe
