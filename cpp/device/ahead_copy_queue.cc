#include "cpp/device/ahead_copy_queue.h"

#include <utility>

namespace freescale::cuda {
namespace {

// Added to a word it is beyond everything that any stream waits for, and half of the way round.
constexpr uint32_t kBeyond = 1u << 30;

}  // namespace

Result<std::unique_ptr<AheadCopyQueue>> AheadCopyQueue::create(const PrimaryContext& context,
                                                               PinnedWord go, PinnedWord progress,
                                                               Options options) {
  Result<DriverStream> stream = DriverStream::create(context);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<AheadCopyQueue>(
      new AheadCopyQueue(context, std::move(stream.value()), go, progress, options));
}

AheadCopyQueue::AheadCopyQueue(const PrimaryContext& context, DriverStream stream, PinnedWord go,
                               PinnedWord progress, Options options)
    : context_(context),
      stream_(std::move(stream)),
      go_(go),
      progress_(progress),
      chunk_bytes_(options.chunk_bytes),
      ledger_(progress, options.first) {
  go_.host->store(options.first, std::memory_order_release);
}

Result<uint32_t> AheadCopyQueue::submit(CopyRequest request) {
  ledger_.let_go();
  if (Status status = ledger_.admit(); !status.ok()) return status;
  const Result<ChunkedCopy> copy = ChunkedCopy::cut(request, chunk_bytes_);
  if (!copy.ok()) return copy.status();
  const CurrentContext current(context_);
  if (!current.status().ok()) return current.status();

  // Added before the driver has it, so that what it has of it by now may be let go: who takes the
  // driver's lock in between, and waits until all streams have drained, waits for that.
  const uint32_t before = ledger_.last();
  const uint32_t last = ledger_.add(std::move(request), copy.value(), /*handed_over=*/true);
  if (Status status = enqueue(copy.value(), before); !status.ok()) {
    ledger_.fail();
    return status;
  }
  return last;
}

Status AheadCopyQueue::enqueue(const ChunkedCopy& copy, uint32_t before) const {
  uint32_t number = before;
  for (uint32_t i = 0; i < copy.chunks(); ++i) {
    ++number;
    if (Status status = stream_.wait({go_, number}); !status.ok()) return status;
    if (Status status = copy.enqueue(stream_, i, {progress_, number}); !status.ok()) return status;
  }
  return {};
}

Result<bool> AheadCopyQueue::drive() {
  ledger_.let_go();
  if (Status status = stream_.check(); !status.ok()) return status;
  return false;
}

void AheadCopyQueue::release(uint32_t chunks) { raise_go(ledger_.release(chunks)); }

void AheadCopyQueue::abort() {
  ledger_.close();
  // A request that is being submitted meanwhile is covered as well.
  raise_go(ledger_.last() + kBeyond);
}

// Never back, whoever comes late: neither behind another release() nor behind abort().
void AheadCopyQueue::raise_go(uint32_t number) const {
  uint32_t seen = go_.host->load(std::memory_order_relaxed);
  while (!has_reached(seen, number)) {
    // Release: what was seen of the words of `ready` happened before the copies.
    if (go_.host->compare_exchange_weak(seen, number, std::memory_order_release,
                                        std::memory_order_relaxed)) {
      return;
    }
  }
}

}  // namespace freescale::cuda
