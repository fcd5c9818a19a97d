// What the size of a chunk and the number of chunks in flight cost a large copy, and an urgent one
// beside it. Argument "proxy": with the queue that hands chunks over when they are let go.

#include <memory>
#include <string>

#include "cpp/device/ahead_copy_queue.h"
#include "cpp/device/copy_pacer.h"
#include "cpp/device/proxy_copy_queue.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::CopyPacer;
using cuda::CopyQueue;
using cuda::CopyRequest;
using cuda::DevicePtr;

constexpr size_t kUrgentBytes = 64 << 10;

// Two queues of copies to the host, an urgent one and one for bulk, and who lets them go.
class Traffic {
 public:
  Traffic(const ProbeDevice& device, bool proxy, size_t chunk_bytes, uint32_t window)
      : pacer_(CopyPacer::Windows{window + 2, window + 2, window, window, window}),
        urgent_(make_queue(device, proxy, chunk_bytes)),
        bulk_(make_queue(device, proxy, chunk_bytes)) {
    pacer_.add(*urgent_, Priority::kUrgent);
    pacer_.add(*bulk_, Priority::kNormal);
  }

  // Takes requests until all are over. `urgent_time`: from the call of the urgent one to its end.
  double run(const CopyRequest& bulk, const CopyRequest& urgent, double* urgent_time) {
    const Nanoseconds begin = now_ns();
    const uint32_t last = require(bulk_->submit(bulk));
    // Once the bulk has begun.
    while (bulk_->in_flight() == 0 && !bulk_->is_over(last)) drive();
    const Nanoseconds asked = now_ns();
    const uint32_t last_urgent = require(urgent_->submit(urgent));
    while (!urgent_->is_over(last_urgent)) drive();
    *urgent_time = static_cast<double>(now_ns() - asked);
    while (!bulk_->is_over(last)) drive();
    return static_cast<double>(now_ns() - begin);
  }

 private:
  static std::unique_ptr<CopyQueue> make_queue(const ProbeDevice& device, bool proxy,
                                               size_t chunk_bytes) {
    const cuda::ChunkOptions options{chunk_bytes, 0};
    if (proxy) {
      return require(cuda::ProxyCopyQueue::create(device.context(), device.word(), options));
    }
    return require(
        cuda::AheadCopyQueue::create(device.context(), device.word(), device.word(), options));
  }

  void drive() {
    pacer_.step(now_ns());
    require(urgent_->drive());
    require(bulk_->drive());
  }

  CopyPacer pacer_;
  const std::unique_ptr<CopyQueue> urgent_;
  const std::unique_ptr<CopyQueue> bulk_;
};

void run(bool proxy, bool brief) {
  const ProbeDevice device;
  const size_t bulk_bytes = brief ? 1 << 20 : 64 << 20;
  const DevicePtr from = device.allocate(bulk_bytes);
  const DevicePtr to =
      reinterpret_cast<DevicePtr>(device.allocate_host(bulk_bytes + kUrgentBytes).host);
  CopyRequest bulk, urgent;
  bulk.pieces = {{to, from, bulk_bytes}};
  urgent.pieces = {{to + bulk_bytes, from, kUrgentBytes}};

  // No smaller ones: a request has 64 chunks at most, and a larger one would get larger chunks.
  const size_t smallest = bulk_bytes / CopyRequest::kChunks;
  for (const size_t chunk_bytes : {smallest, 4 * smallest, 16 * smallest}) {
    for (const uint32_t window : {1u, 2u, 4u, 8u}) {
      Traffic traffic(device, proxy, chunk_bytes, window);
      double urgent_time = 0;
      traffic.run(bulk, urgent, &urgent_time);  // everything is used once
      const double time = traffic.run(bulk, urgent, &urgent_time);
      const std::string name = "chunks of " + std::to_string(chunk_bytes >> 10) + " KiB, " +
                               std::to_string(window) + " in flight: ";
      fact(name + "rate", static_cast<double>(bulk_bytes + kUrgentBytes) / time, "GB/s");
      fact(name + "an urgent copy takes", urgent_time / 1e3, "us");
    }
  }
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) {
  freescale::probe::run(freescale::probe::has_argument(argc, argv, "proxy"),
                        freescale::probe::is_short(argc, argv));
}
