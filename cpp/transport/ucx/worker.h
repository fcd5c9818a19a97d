#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/base/unique_fd.h"
#include "cpp/device/segment.h"
#include "cpp/transport/ucx/ucp_library.h"

namespace freescale::ucx {

class Worker;

// The data of a message, kept: UCX's own memory where UCX gives it away, else a copy.
class HeldData {
 public:
  HeldData() = default;
  // UCX's memory.
  HeldData(std::shared_ptr<Worker> worker, std::span<const std::byte> bytes)
      : worker_(std::move(worker)), bytes_(bytes) {}
  HeldData(std::shared_ptr<Worker> worker, std::vector<std::byte> copy)
      : worker_(std::move(worker)), copy_(std::move(copy)), bytes_(copy_) {}
  HeldData(HeldData&& other) noexcept { swap(other); }
  HeldData& operator=(HeldData&& other) noexcept {
    swap(other);
    return *this;
  }
  ~HeldData();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void swap(HeldData& other) noexcept;

  std::shared_ptr<Worker> worker_;  // which gets the memory back
  std::vector<std::byte> copy_;     // empty: it is UCX's
  std::span<const std::byte> bytes_;
};

// The data of a message, for as long as its sink is told of it.
class ArrivedData {
 public:
  // `given_away`: the bytes may be kept as they are.
  ArrivedData(Worker& worker, std::span<const std::byte> bytes, bool given_away)
      : worker_(worker), bytes_(bytes), given_away_(given_away) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  // For longer. Once.
  HeldData hold();
  // Whether UCX's memory was kept.
  bool kept() const { return kept_; }

 private:
  Worker& worker_;
  const std::span<const std::byte> bytes_;
  const bool given_away_;
  bool kept_ = false;
};

// Gets what a worker receives, on whichever thread makes progress, with the worker's lock held: it
// may only note it down.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  virtual void on_message(std::span<const std::byte> header, ArrivedData& data) = 0;
  // After the messages of a poll().
  virtual void on_polled() = 0;
};

// Hears of one endpoint, likewise with the lock held.
class EndpointEvents {
 public:
  virtual ~EndpointEvents() = default;
  // Nothing more will come or go.
  virtual void on_error(const std::string& why) = 0;
  // Bytes that were given to send are UCX's no more; `puts` as it was given.
  virtual void on_sent(size_t bytes, uint64_t puts) = 0;
};

// One UCX worker: the process's place in the network. Its lock is UCX's
// (UCS_THREAD_MODE_SERIALIZED: UCX itself has none, and crashes without). A thread makes progress
// where no caller does, as a process that does not answer stops its peers over TCP; it sleeps when
// there is nothing to do.
//
// Callers who wait for messages poll() in a loop, and hand_over() before they sleep.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  struct Options {
    std::vector<std::string> libraries;         // see UcpLibrary
    std::string interfaces;                     // see read_settings()
    std::chrono::milliseconds patience{15000};  // likewise
    std::function<void()> service;  // called by the thread every `service_interval` or sooner
    std::chrono::nanoseconds service_interval = std::chrono::seconds(1);
  };
  static Result<std::shared_ptr<Worker>> create(Options options, MessageSink& sink);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const UcpLibrary& ucp() const { return ucp_; }
  // What others connect to.
  const std::string& address() const { return address_; }

  // Starts the thread: nothing is received, and no service called, before.
  Status start();

  // The way to one other worker. Closed, without a word to the peer, by close_endpoint().
  // kPeerLost where none is found now.
  Result<ucp_ep_h> open_endpoint(const std::string& address, EndpointEvents& events);
  void close_endpoint(ucp_ep_h endpoint);
  // Over which transports and devices, each once: "tcp/eth0". None where UCX cannot tell.
  std::vector<std::string> routes(ucp_ep_h endpoint) const;

  // Sends `header` and `body` as one message; `events.on_sent()` tells when the bytes of the body
  // are gone, and may do so within the call. Both are copied, unless `puts` is not 0 and the body
  // is in one piece: then UCX reads the body itself until on_sent(). Does not block. A failure also
  // reaches on_error().
  Status send(ucp_ep_h endpoint, std::span<const std::byte> header, std::span<const Segment> body,
              EndpointEvents& events, uint64_t puts);

  // Makes some progress, unless another thread does just now. Whether anything happened.
  bool poll();
  // Whether a message is being received by poll(), and not by another thread on its own. For the
  // sink.
  bool polling() const { return polling_; }
  // This thread polls no more; the worker's own takes care.
  void hand_over();
  // Has the thread call the service at once.
  void wake();
  // Waits, with progress, until `done` or the deadline.
  bool progress_until(const std::function<bool()>& done, Deadline deadline);
  // Ends the thread. Nothing is received any more, except by progress_until().
  void stop();

 private:
  friend class ArrivedData;
  friend class HeldData;
  // A message on its way out. UCX reads header and body until it says that they are gone.
  struct Sending {
    Worker* worker = nullptr;
    EndpointEvents* events = nullptr;
    std::vector<std::byte> header;
    std::vector<std::byte> copy;  // of the body; empty: the sender's own memory is read
    size_t bytes = 0;             // of the body
    uint64_t puts = 0;
  };

  Worker(const UcpLibrary& ucp, Options options, MessageSink& sink)
      : ucp_(ucp), options_(std::move(options)), sink_(sink) {}
  Status open();
  Status listen();
  void run();
  void sleep();
  // Whether anything happened. With the lock.
  bool progress();
  std::vector<std::byte> copy_of(std::span<const std::byte> bytes);
  void release(std::span<const std::byte> bytes);
  void recycle(std::vector<std::byte> copy);

  static ucs_status_t on_received(void* worker, const void* header, size_t header_bytes, void* data,
                                  size_t bytes, const ucp_am_recv_param_t* parameters);
  static void on_endpoint_error(void* events, ucp_ep_h endpoint, ucs_status_t status);
  static void on_send_over(void* request, ucs_status_t status, void* sending);

  const UcpLibrary& ucp_;
  const Options options_;
  MessageSink& sink_;
  // Recursive: what UCX calls back may drop data that it has kept.
  mutable std::recursive_mutex mutex_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  // Under the mutex.
  std::vector<std::unique_ptr<Sending>> spare_sendings_;
  std::vector<std::vector<std::byte>> spare_copies_;
  bool polling_ = false;

  int events_ = -1;  // UCX's own descriptor
  UniqueFd kick_;
  std::atomic<bool> polled_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace freescale::ucx
