#pragma once

#include <memory>

#include "cpp/device/chunk_ledger.h"
#include "cpp/device/copy_queue.h"
#include "cpp/device/driver_stream.h"

namespace freescale::cuda {

// Copies that are submitted to the driver at once and move later, chunk by chunk, as the host lets
// them: each chunk waits in its stream until the word `go` has reached its number, and writes that
// number to `progress` when its bytes are there. So priority is decided by who raises `go`, which
// is a store to memory. It takes no lock of the driver, which may be held for as long as a kernel
// runs (lazy loading, full queues), and it also ends a stream's waiting when the operation is given
// up.
//
// Priorities hold on engines that take copies as they become ready. An engine that takes them in
// the order of submission is held up by the first one that was not let go: there ProxyCopyQueue is
// the choice (docs/adr/0013-two-ways-to-submit-copies.md).
class AheadCopyQueue : public CopyQueue {
 public:
  using Options = ChunkOptions;

  // What both words hold from here on is this object's business: nobody else writes them. They and
  // `context` must outlive it, and the work of its stream.
  static Result<std::unique_ptr<AheadCopyQueue>> create(const PrimaryContext& context,
                                                        PinnedWord go, PinnedWord progress,
                                                        Options options);
  // Does not wait: a stream that has not drained goes on as far as it was let go.
  ~AheadCopyQueue() override = default;

  bool has_room() const override { return ledger_.has_room(); }
  Result<uint32_t> submit(CopyRequest request) override;
  Result<bool> drive() override;

  bool is_over(uint32_t last) const override { return ledger_.is_over(last); }
  uint32_t releasable() override { return ledger_.releasable(); }
  void release(uint32_t chunks) override;
  uint32_t in_flight() override { return ledger_.in_flight(); }
  bool drained() const override { return ledger_.drained(); }

  void abandon(uint32_t last) override { ledger_.abandon(last); }
  void abort() override;

 private:
  AheadCopyQueue(const PrimaryContext& context, DriverStream stream, PinnedWord go,
                 PinnedWord progress, Options options);
  // The chunks after number `before`.
  Status enqueue(const ChunkedCopy& copy, uint32_t before) const;
  // Lets the stream pass all waits up to `number`.
  void raise_go(uint32_t number) const;

  const PrimaryContext& context_;
  const DriverStream stream_;
  const PinnedWord go_;        // written by the host alone
  const PinnedWord progress_;  // written by the stream alone
  const size_t chunk_bytes_;
  ChunkLedger ledger_;
};

}  // namespace freescale::cuda
