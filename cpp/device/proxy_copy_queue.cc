#include "cpp/device/proxy_copy_queue.h"

#include <utility>

namespace freescale::cuda {

Result<std::unique_ptr<ProxyCopyQueue>> ProxyCopyQueue::create(const PrimaryContext& context,
                                                               PinnedWord progress,
                                                               Options options) {
  Result<DriverStream> stream = DriverStream::create(context);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<ProxyCopyQueue>(
      new ProxyCopyQueue(context, std::move(stream.value()), progress, options));
}

ProxyCopyQueue::ProxyCopyQueue(const PrimaryContext& context, DriverStream stream,
                               PinnedWord progress, Options options)
    : context_(context),
      stream_(std::move(stream)),
      progress_(progress),
      chunk_bytes_(options.chunk_bytes),
      ledger_(progress, options.first) {}

Result<uint32_t> ProxyCopyQueue::submit(CopyRequest request) {
  ledger_.let_go();
  if (Status status = ledger_.admit(); !status.ok()) return status;
  Result<ChunkedCopy> copy = ChunkedCopy::cut(request, chunk_bytes_);
  if (!copy.ok()) return copy.status();
  const uint32_t last = ledger_.add(std::move(request), copy.value(), /*handed_over=*/false);
  waiting_.push_back({last, std::move(copy.value())});
  return last;
}

Result<bool> ProxyCopyQueue::drive() {
  ledger_.let_go();
  if (!failure_.ok()) return failure_;
  Result<bool> handed = hand_over();
  if (!handed.ok()) {
    failure_ = handed.status();
    ledger_.fail();
    return failure_;
  }
  // Handing over notices a dead stream as well.
  if (!handed.value()) {
    if (Status status = stream_.check(); !status.ok()) return status;
  }
  return handed;
}

Result<bool> ProxyCopyQueue::hand_over() {
  std::optional<uint32_t> number = ledger_.claim();
  if (!number.has_value()) return false;
  const CurrentContext current(context_);
  if (!current.status().ok()) return current.status();
  for (; number.has_value(); number = ledger_.claim()) {
    if (Status status = hand_over(*number); !status.ok()) return status;
  }
  return true;
}

Status ProxyCopyQueue::hand_over(uint32_t number) {
  // Requests whose last chunks were dropped.
  while (!has_reached(waiting_.front().last, number)) waiting_.pop_front();
  const auto& [last, copy] = waiting_.front();
  const uint32_t index = copy.chunks() - 1 - (last - number);
  const Status status = copy.enqueue(stream_, index, {progress_, number});
  if (number == last) waiting_.pop_front();
  return status;
}

}  // namespace freescale::cuda
