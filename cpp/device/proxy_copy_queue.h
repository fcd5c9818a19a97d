#pragma once

#include <deque>
#include <memory>

#include "cpp/device/chunk_ledger.h"
#include "cpp/device/copy_queue.h"
#include "cpp/device/driver_stream.h"

namespace freescale::cuda {

// Copies that are handed to the driver once they may move: release() only counts, and the thread
// that calls drive() enqueues what was let go. So nothing ever waits in the stream, and priorities
// hold on every copy engine.
//
// But no copy begins while somebody else holds the driver's lock. The first launch of a kernel
// holds it until the device is idle (lazy loading), and it never is if a stream waits for this
// queue's words (docs/adr/0013-two-ways-to-submit-copies.md).
class ProxyCopyQueue : public CopyQueue {
 public:
  using Options = ChunkOptions;

  // What `progress` holds from here on is this object's business: nobody else writes it. It and
  // `context` must outlive it, and the work of its stream.
  static Result<std::unique_ptr<ProxyCopyQueue>> create(const PrimaryContext& context,
                                                        PinnedWord progress, Options options);
  // Does not wait: what the stream has goes on.
  ~ProxyCopyQueue() override = default;

  bool has_room() const override { return ledger_.has_room(); }
  Result<uint32_t> submit(CopyRequest request) override;
  Result<bool> drive() override;

  bool is_over(uint32_t last) const override { return ledger_.is_over(last); }
  uint32_t releasable() override { return ledger_.releasable(); }
  void release(uint32_t chunks) override { ledger_.release(chunks); }
  uint32_t in_flight() override { return ledger_.in_flight(); }
  bool drained() const override { return ledger_.drained(); }

  void abandon(uint32_t last) override { ledger_.abandon(last); }
  // Nothing more is handed over; a chunk that is being handed over just now still is.
  void abort() override { ledger_.close(); }

 private:
  // A request with chunks that were not handed over, the last of them `last`.
  struct Waiting {
    uint32_t last;
    ChunkedCopy copy;
  };

  ProxyCopyQueue(const PrimaryContext& context, DriverStream stream, PinnedWord progress,
                 Options options);
  // Whether there was something to hand over.
  Result<bool> hand_over();
  Status hand_over(uint32_t number);

  const PrimaryContext& context_;
  const DriverStream stream_;
  const PinnedWord progress_;  // written by the stream alone
  const size_t chunk_bytes_;
  ChunkLedger ledger_;

  // Both belong to the thread that calls the driver.
  std::deque<Waiting> waiting_;
  Status failure_;
};

}  // namespace freescale::cuda
