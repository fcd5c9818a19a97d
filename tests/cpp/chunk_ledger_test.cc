// The numbers of a copy queue's chunks, against a model that knows each chunk by itself.

#include "cpp/device/chunk_ledger.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "cpp/device/chunked_copy.h"
#include "tests/cpp/check.h"

namespace freescale::cuda {
namespace {

enum class Fate { kAdded, kReleased, kHanded, kArrived, kDropped };

struct ModelRequest {
  size_t begin, end;  // its chunks
  std::unique_ptr<std::atomic<uint32_t>> called, gate;
  bool gated, abandoned;
  std::weak_ptr<const void> kept;
};

// Chunk i has the number first + 1 + i.
class Model {
 public:
  Model(unsigned seed, uint32_t first, bool ahead)
      : random_(seed), first_(first), ahead_(ahead), ledger_({&progress_, 0}, first) {}

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      check();
    }
  }
  // Nothing is stuck: whoever goes on ends everything.
  void finish() {
    for (ModelRequest& request : requests_) abandon(request);
    while (in_flight() + releasable() > 0) {
      release(8);
      hand_over();
      arrive();
      check();
    }
    CHECK(ledger_.drained());
    CHECK_EQ(ledger_.last(), number(chunks_.size() - 1));
  }
  void close() {
    ledger_.close();
    for (ModelRequest& request : requests_) abandon(request);
    check();
    CHECK(ledger_.admit().code() == StatusCode::kCancelled);
    if (!ahead_) CHECK_EQ(ledger_.releasable(), 0u);
  }

 private:
  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  uint32_t number(size_t chunk) const { return first_ + 1 + static_cast<uint32_t>(chunk); }

  void step() {
    switch (below(7)) {
      case 0:
        return add();
      case 1:
        return release(1 + below(3));
      case 2:
        return hand_over();
      case 3:
      case 4:
        return arrive();
      case 5:
        return call();
      default:
        if (below(4) == 0 && !requests_.empty()) abandon(requests_[below_size(requests_.size())]);
    }
  }
  size_t below_size(size_t size) {
    // One of the last few: those before are over.
    const size_t last = std::min<size_t>(size, 6);
    return size - 1 - below(static_cast<uint32_t>(last));
  }

  void add() {
    if (!ledger_.has_room()) return;
    CHECK_OK(ledger_.admit());
    ModelRequest made{chunks_.size(),
                      0,
                      std::make_unique<std::atomic<uint32_t>>(below(2)),
                      std::make_unique<std::atomic<uint32_t>>(-3u),
                      below(3) == 0,
                      false,
                      {}};
    auto keep = std::make_shared<int>(0);
    made.kept = keep;
    CopyRequest request;
    request.pieces = {{0, 0, below(6)}};
    request.ready = {{{made.called.get(), 0}, 1}};
    if (made.gated) request.gate = ChunkGate{{made.gate.get(), 0}, -2u};
    request.keep = std::move(keep);
    const ChunkedCopy copy = ChunkedCopy::cut(request, 1).value();
    const uint32_t last = ledger_.add(std::move(request), copy, ahead_);
    chunks_.resize(chunks_.size() + copy.chunks(), Fate::kAdded);
    made.end = chunks_.size();
    CHECK_EQ(last, number(made.end - 1));
    requests_.push_back(std::move(made));
  }

  // A word of one of the last requests goes on.
  void call() {
    if (requests_.empty()) return;
    ModelRequest& request = requests_[below_size(requests_.size())];
    *request.called = 1;
    *request.gate += below(3);
  }

  bool is_ready(const ModelRequest& request, size_t chunk) const {
    if (request.abandoned) return true;
    if (*request.called == 0) return false;
    return !request.gated ||
           has_reached(*request.gate, -2u + static_cast<uint32_t>(chunk - request.begin));
  }

  // Chunks that are ready and not let go, in order.
  std::vector<size_t> ready() const {
    std::vector<size_t> found;
    for (const ModelRequest& request : requests_) {
      for (size_t i = request.begin; i < request.end; ++i) {
        if (chunks_[i] == Fate::kDropped || chunks_[i] > Fate::kAdded) continue;
        if (!is_ready(request, i)) return found;
        found.push_back(i);
      }
    }
    return found;
  }
  uint32_t releasable() const { return static_cast<uint32_t>(ready().size()); }
  uint32_t in_flight() const {
    return static_cast<uint32_t>(std::count_if(chunks_.begin(), chunks_.end(), [](Fate fate) {
      return fate == Fate::kReleased || fate == Fate::kHanded;
    }));
  }
  bool is_over(size_t chunk) const {
    return std::all_of(chunks_.begin(), chunks_.begin() + static_cast<ptrdiff_t>(chunk) + 1,
                       [](Fate fate) { return fate >= Fate::kArrived; });
  }

  void release(uint32_t chunks) {
    std::vector<size_t> ready_now = ready();
    ready_now.resize(std::min<size_t>(ready_now.size(), chunks));
    for (size_t i : ready_now) chunks_[i] = ahead_ ? Fate::kHanded : Fate::kReleased;
    const uint32_t last = ledger_.release(chunks);
    if (!ready_now.empty()) CHECK_EQ(last, number(ready_now.back()));
  }
  void hand_over() {
    if (ahead_) return;
    const auto next = std::find(chunks_.begin(), chunks_.end(), Fate::kReleased);
    const std::optional<uint32_t> claimed = ledger_.claim();
    CHECK_EQ(claimed.has_value(), next != chunks_.end());
    if (next == chunks_.end()) return;
    CHECK_EQ(*claimed, number(static_cast<size_t>(next - chunks_.begin())));
    *next = Fate::kHanded;
  }
  void arrive() {
    const auto next = std::find(chunks_.begin(), chunks_.end(), Fate::kHanded);
    if (next == chunks_.end()) return;
    *next = Fate::kArrived;
    progress_ = number(static_cast<size_t>(next - chunks_.begin()));
  }
  void abandon(ModelRequest& request) {
    ledger_.abandon(number(request.end - 1));
    request.abandoned = true;
    if (ahead_) return;
    for (size_t i = request.begin; i < request.end; ++i) {
      if (chunks_[i] < Fate::kHanded) chunks_[i] = Fate::kDropped;
    }
  }

  void check() {
    // In any order, as each of them may be the first to notice something.
    std::vector<std::function<void()>> looks = {
        [&] { CHECK_EQ(ledger_.releasable(), releasable()); },
        [&] { CHECK_EQ(ledger_.in_flight(), in_flight()); },
        [&] { CHECK_EQ(ledger_.drained(), chunks_.empty() || is_over(chunks_.size() - 1)); },
        [&] {
          if (chunks_.empty()) return;
          const size_t chunk = below_size(chunks_.size());
          CHECK_EQ(ledger_.is_over(number(chunk)), is_over(chunk));
        },
        [&] {
          ledger_.let_go();
          for (const ModelRequest& request : requests_) {
            CHECK_EQ(request.kept.expired(), is_over(request.end - 1));
          }
        },
    };
    std::shuffle(looks.begin(), looks.end(), random_);
    looks.resize(1 + below(5));
    for (const auto& look : looks) look();
  }

  std::mt19937 random_;
  const uint32_t first_;
  const bool ahead_;
  std::atomic<uint32_t> progress_ = 0;
  std::vector<Fate> chunks_;
  std::vector<ModelRequest> requests_;
  ChunkLedger ledger_;
};

TEST(numbers_agree_with_a_model_of_single_chunks) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    Model model(seed, seed % 3 == 0 ? 0u : 0u - 20, seed % 2 == 0);
    model.run(150);
    model.finish();
  }
}

TEST(a_ledger_that_was_closed_agrees_as_well) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Model model(seed, 0u - 10, seed % 2 == 0);
    model.run(60);
    model.close();
    model.finish();
  }
}

TEST(a_request_that_is_added_after_the_end_is_dropped) {
  std::atomic<uint32_t> progress = 0;
  ChunkLedger ledger({&progress, 0}, 5);
  CopyRequest request;
  request.pieces = {{0, 0, 3}};
  const ChunkedCopy copy = ChunkedCopy::cut(request, 1).value();
  ledger.close();
  CHECK_EQ(ledger.add(std::move(request), copy, /*handed_over=*/false), 8u);
  CHECK_EQ(ledger.releasable(), 0u);
  CHECK(ledger.is_over(8));
  CHECK(ledger.drained());
}

TEST(chunks_that_are_dropped_for_ever_do_not_let_numbers_fall_back) {
  std::atomic<uint32_t> progress = 0;
  ChunkLedger ledger({&progress, 0}, 0);
  CopyRequest request;
  request.pieces = {{0, 0, 60}};
  const ChunkedCopy copy = ChunkedCopy::cut(request, 1).value();
  for (int i = 0; i < 100; ++i) {
    const uint32_t last = ledger.add(CopyRequest(request), copy, /*handed_over=*/false);
    ledger.abandon(last);
    CHECK(ledger.is_over(last));
    CHECK(ledger.has_room());
    CHECK_EQ(ledger.in_flight(), 0u);
  }
}

}  // namespace
}  // namespace freescale::cuda
