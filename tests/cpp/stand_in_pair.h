#pragma once

#include <cstring>
#include <functional>
#include <span>
#include <utility>

#include "cpp/base/clock.h"
#include "cpp/base/unique_fd.h"
#include "cpp/rendezvous/unix_socket.h"
#include "tests/cpp/check.h"
#include "tests/cpp/stand_in_driver.h"

namespace freescale::testing {

// One end of a socket between two processes.
class Channel {
 public:
  explicit Channel(UniqueFd socket) : socket_(std::move(socket)) {}

  template <typename T>
  void send(const T& value, std::span<const int> fds = {}) const {
    CHECK_OK(send_message(socket_.get(), std::as_bytes(std::span(&value, 1)), fds));
  }
  // If the value may come with a descriptor, `fd` gets it.
  template <typename T>
  T receive(UniqueFd* fd = nullptr) const {
    Result<SocketMessage> message =
        receive_message(socket_.get(), sizeof(T), Deadline::after(std::chrono::seconds(15)));
    CHECK_OK(message);
    CHECK_EQ(message.value().bytes.size(), sizeof(T));
    CHECK_LE(message.value().fds.size(), fd != nullptr ? 1u : 0u);
    if (!message.value().fds.empty()) *fd = std::move(message.value().fds[0]);
    T value;
    std::memcpy(&value, message.value().bytes.data(), sizeof(T));
    return value;
  }

 private:
  UniqueFd socket_;
};

using PairBody = std::function<void(StandIn&, const Channel&)>;

// Two processes with a stand-in driver each; both must come to their end.
void on_two_processes(const Environment& environment, const PairBody& first,
                      const PairBody& second);
// With each of kDriverVersions.
void on_two_processes_each_version(const PairBody& first, const PairBody& second,
                                   Environment environment = {});

}  // namespace freescale::testing
