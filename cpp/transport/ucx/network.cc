#include "cpp/transport/ucx/network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpp/base/foreign.h"
#include "cpp/base/random.h"

namespace freescale::ucx {
namespace {

// For what is still on its way at the end, to peers that may be gone.
constexpr std::chrono::seconds kGoodbyeLimit{5};
// Handshakes of strangers that wait to be looked at; more are dropped.
constexpr size_t kMostHandshakes = 4096;

}  // namespace

Result<std::unique_ptr<Network>> Network::create(NetworkOptions options, Wakers wakers,
                                                 HandshakeHandler on_handshake) {
  std::unique_ptr<Network> network(
      new Network(std::move(options), std::move(wakers), std::move(on_handshake)));
  Worker::Options worker_options;
  worker_options.libraries = network->options_.libraries;
  worker_options.interfaces = network->options_.interfaces;
  worker_options.patience =
      std::chrono::ceil<std::chrono::milliseconds>(kSilentHeartbeats * network->options_.heartbeat);
  worker_options.service = [self = network.get()] { self->service(); };
  worker_options.service_interval = network->options_.heartbeat / 4;
  Result<std::shared_ptr<Worker>> worker = Worker::create(std::move(worker_options), *network);
  if (!worker.ok()) return worker.status();
  network->worker_ = std::move(worker.value());
  return network;
}

Network::~Network() {
  if (worker_ == nullptr) return;
  worker_->stop();
  close_discarded();
  const std::vector<std::shared_ptr<UcxLink>> open = links();
  for (const std::shared_ptr<UcxLink>& link : open) link->say_goodbye();
  const auto all_there = [&] {
    return std::none_of(open.begin(), open.end(), [](const std::shared_ptr<UcxLink>& link) {
      return link->awaits_farewell();
    });
  };
  worker_->progress_until(all_there, Deadline::after(kGoodbyeLimit));
  for (const std::shared_ptr<UcxLink>& link : open) link->close();
}

Result<std::shared_ptr<UcxLink>> Network::open_link(const std::string& address,
                                                    std::string peer_name) {
  uint64_t key = 0;
  while (key == 0) key = random_u64();
  auto link = std::make_shared<UcxLink>(worker_, key, std::move(peer_name), wakers_);
  {
    const std::lock_guard lock(mutex_);
    links_[key] = link;
  }
  if (Status status = link->open(address); !status.ok()) {
    discard(*link);
    return status;
  }
  return link;
}

void Network::discard(const UcxLink& link) {
  {
    const std::lock_guard lock(mutex_);
    discarded_.push_back(link.key());
  }
  worker_->wake();
}

void Network::close_discarded() {
  std::vector<std::shared_ptr<UcxLink>> leaving;
  {
    const std::lock_guard lock(mutex_);
    for (const uint64_t key : std::exchange(discarded_, {})) {
      if (const auto found = links_.find(key); found != links_.end()) {
        leaving.push_back(std::move(found->second));
        links_.erase(found);
      }
    }
  }
  for (const std::shared_ptr<UcxLink>& link : leaving) link->close();
}

void Network::on_message(std::span<const std::byte> head, ArrivedData& data) {
  if (head.size() != sizeof(MessageHeader)) return;  // not one of ours
  const auto header = copy_of_foreign<MessageHeader>(head.data());
  std::shared_ptr<UcxLink> link;
  {
    const std::lock_guard lock(mutex_);
    if (header.kind == MessageKind::kHandshake) {
      if (handshakes_.size() >= kMostHandshakes) return;
      handshakes_.emplace_back(data.bytes().begin(), data.bytes().end());
    } else if (const auto found = links_.find(header.key); found != links_.end()) {
      link = found->second;
    }
  }
  if (header.kind == MessageKind::kHandshake) return worker_->wake();
  if (link != nullptr && link->on_message(header, data)) placed_.push_back(std::move(link));
}

void Network::on_polled() {
  for (const std::shared_ptr<UcxLink>& link : placed_) link->return_credits();
  placed_.clear();
}

std::vector<std::shared_ptr<UcxLink>> Network::links() {
  std::vector<std::shared_ptr<UcxLink>> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, link] : links_) all.push_back(link);
  return all;
}

void Network::service() {
  std::vector<std::vector<std::byte>> handshakes;
  {
    const std::lock_guard lock(mutex_);
    handshakes.swap(handshakes_);
  }
  for (std::vector<std::byte>& message : handshakes) on_handshake_(std::move(message));
  close_discarded();
  const Nanoseconds now = now_ns();
  const Nanoseconds interval = options_.heartbeat.count();
  if (now - served_at_ < interval / 4) return;
  served_at_ = now;
  for (const std::shared_ptr<UcxLink>& link : links()) link->keep_alive(now, interval);
}

}  // namespace freescale::ucx
