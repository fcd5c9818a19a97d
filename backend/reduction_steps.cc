#include "backend/reduction_steps.h"

#include <algorithm>

#include <ATen/ops/empty.h>

#include "backend/plain_dispatch.h"

namespace freescale {
namespace {

// What one rank combines at a time, from each rank: large enough to hide the cost of an exchange,
// small enough for contributions, partial result and output to stay in the caches.
constexpr size_t kMostSliceBytes = 512 << 10;
constexpr size_t kLeastSliceBytes = 64 << 10;
// Scratch memory for the contributions to one block, where the two limits above allow.
constexpr size_t kScratchBytes = 2 << 20;

// Up to here one exchange of the whole tensor beats two of its parts: latency, not bytes, counts.
constexpr size_t kOneExchangeBytes = 64 << 10;  // received by a rank

// Slices begin on cache lines of the largest dtype's elements (16 bytes), relative to the tensor.
constexpr int64_t kSliceAlignment = 64;

size_t slice_bytes(int size) {
  const auto peers = static_cast<size_t>(std::max(size - 1, 1));
  return std::clamp(kScratchBytes / peers, kLeastSliceBytes, kMostSliceBytes);
}

int64_t ceil_divide(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
};

// Range number `index` of those of `length` elements that cover `elements`; empty beyond.
Range nth_range(int64_t elements, int64_t length, int64_t index) {
  return {std::min(elements, index * length), std::min(elements, (index + 1) * length)};
}

// At least one: see ReductionSteps::blocks().
int64_t count_blocks(int64_t elements, int64_t block) {
  return std::max<int64_t>(ceil_divide(elements, block), 1);
}

int64_t longest(const std::vector<int64_t>& elements) {
  return *std::max_element(elements.begin(), elements.end());
}

// What the kinds of reduction share: scratch memory for the peers' contributions.
class StepsWithScratch : public ReductionSteps {
 public:
  const at::Tensor& scratch_memory() const override { return scratch_; }

 protected:
  // `slice` elements from each peer, for as many of `blocks` blocks as are under way at a time.
  StepsWithScratch(const ReductionTask& task, int64_t slice, int64_t blocks)
      : task_(task),
        reducer_(task.reduction, task.dtype, task.device),
        slice_bytes_(slice * task.element_bytes()) {
    const PlainDispatch guard;
    const int64_t slots = std::min<int64_t>(blocks, kBlocksInFlight);
    const auto bytes = static_cast<int64_t>(slice_bytes_) * (task.size - 1) * slots;
    scratch_ = at::empty({bytes}, at::TensorOptions(task.device).dtype(at::kByte));
    scratch_data_ = static_cast<std::byte*>(scratch_.mutable_data_ptr());
  }

  const ReductionTask& task() const { return task_; }
  int64_t bytes(int64_t elements) const {
    return elements * static_cast<int64_t>(task_.element_bytes());
  }
  std::byte* scratch(int slot, int peer) const {
    const int place = peer < task_.rank ? peer : peer - 1;  // the own rank needs none
    return scratch_data_ + slice_bytes_ * (slot * (task_.size - 1) + place);
  }

  // The peers, starting behind the own rank, so that they do not all turn to rank 0 first.
  template <typename Body>
  void for_each_peer(Body body) const {
    for (int i = 1; i < task_.size; ++i) body((task_.rank + i) % task_.size);
  }
  void send(Plan& plan, int peer, std::byte* base, Range range) const {
    plan.sends.push_back({peer, {segment(base, range)}});
  }
  void receive(Plan& plan, int peer, std::byte* base, Range range) const {
    plan.receives.push_back({peer, {segment(base, range)}});
  }
  void receive_scratch(Plan& plan, int slot, int peer, int64_t elements) const {
    receive(plan, peer, scratch(slot, peer), {0, elements});
  }

  // Combines the peers' contributions in `slot` with the own one.
  void combine(int slot, std::byte* own, std::byte* output, int64_t elements) const {
    std::vector<std::byte*> contributions(task_.size);
    for (int rank = 0; rank < task_.size; ++rank) {
      contributions[rank] = rank == task_.rank ? own : scratch(slot, rank);
    }
    reducer_.reduce(output, contributions, task_.rank, elements);
  }

 private:
  Segment segment(std::byte* base, Range range) const {
    return {base + bytes(range.begin), static_cast<size_t>(bytes(range.length()))};
  }

  const ReductionTask task_;
  const RankOrderReducer reducer_;
  const size_t slice_bytes_;
  at::Tensor scratch_;
  std::byte* scratch_data_ = nullptr;
};

// Everyone sends everything to everyone and combines it all.
class OneExchangeAllReduce final : public StepsWithScratch {
 public:
  OneExchangeAllReduce(const ReductionTask& task, std::byte* input, std::byte* output,
                       int64_t elements)
      : StepsWithScratch(task, elements, 1), input_(input), output_(output), elements_(elements) {}

  int64_t blocks() const override { return 1; }
  int stages() const override { return 1; }

  void plan_stage(const Block& block, int, Plan& plan) override {
    for_each_peer([&](int peer) {
      send(plan, peer, input_, {0, elements_});
      receive_scratch(plan, block.slot, peer, elements_);
    });
  }

  void finish_stage(const Block& block, int) override {
    combine(block.slot, input_, output_, elements_);
  }

 private:
  std::byte* const input_;
  std::byte* const output_;
  const int64_t elements_;
};

// Each rank combines one slice of each block (stage 0) and gives it to all (stage 1).
class BlockedAllReduce final : public StepsWithScratch {
 public:
  BlockedAllReduce(const ReductionTask& task, std::byte* input, std::byte* output, int64_t elements,
                   int64_t slice)
      : StepsWithScratch(task, slice, count_blocks(elements, slice * task.size)),
        input_(input),
        output_(output),
        elements_(elements),
        block_(slice * task.size) {}

  int64_t blocks() const override { return count_blocks(elements_, block_); }
  int stages() const override { return 2; }

  void plan_stage(const Block& block, int stage, Plan& plan) override {
    const Range own = slice(block, task().rank);
    for_each_peer([&](int peer) {
      if (stage == 0) {
        send(plan, peer, input_, slice(block, peer));
        receive_scratch(plan, block.slot, peer, own.length());
      } else {
        send(plan, peer, output_, own);
        receive(plan, peer, output_, slice(block, peer));
      }
    });
  }

  void finish_stage(const Block& block, int stage) override {
    if (stage == 1) return;
    const Range own = slice(block, task().rank);
    combine(block.slot, input_ + bytes(own.begin), output_ + bytes(own.begin), own.length());
  }

 private:
  // What `rank` combines of the block: an equal share, cut at kSliceAlignment.
  Range slice(const Block& block, int rank) const {
    const Range whole = nth_range(elements_, block_, block.index);
    const int64_t share = ceil_divide(ceil_divide(whole.length(), task().size), kSliceAlignment);
    const Range part = nth_range(whole.length(), share * kSliceAlignment, rank);
    return {whole.begin + part.begin, whole.begin + part.end};
  }

  std::byte* const input_;
  std::byte* const output_;
  const int64_t elements_;
  const int64_t block_;
};

// The root receives each block from everyone and combines it.
class RootReduce final : public StepsWithScratch {
 public:
  RootReduce(const ReductionTask& task, int root, std::byte* input, std::byte* output,
             int64_t elements, int64_t block)
      : StepsWithScratch(task, task.rank == root ? block : 0, count_blocks(elements, block)),
        root_(root),
        input_(input),
        output_(output),
        elements_(elements),
        block_(block) {}

  int64_t blocks() const override { return count_blocks(elements_, block_); }
  int stages() const override { return 1; }

  void plan_stage(const Block& block, int, Plan& plan) override {
    const Range range = nth_range(elements_, block_, block.index);
    // With an empty message back, as in a gather: both see how the other called.
    if (task().rank != root_) {
      send(plan, root_, input_, range);
      plan.receives.push_back({root_, {}});
      return;
    }
    for_each_peer([&](int peer) {
      receive_scratch(plan, block.slot, peer, range.length());
      plan.sends.push_back({peer, {}});
    });
  }

  void finish_stage(const Block& block, int) override {
    if (task().rank != root_) return;
    const Range range = nth_range(elements_, block_, block.index);
    combine(block.slot, input_ + bytes(range.begin), output_ + bytes(range.begin), range.length());
  }

 private:
  const int root_;
  std::byte* const input_;
  std::byte* const output_;
  const int64_t elements_;
  const int64_t block_;
};

// Block b is part b of every rank's share: each rank receives and combines its own.
class ScatterReduce final : public StepsWithScratch {
 public:
  ScatterReduce(const ReductionTask& task, std::vector<std::byte*> inputs,
                std::vector<int64_t> elements, std::byte* output, int64_t slice)
      : StepsWithScratch(task, slice, count_blocks(longest(elements), slice)),
        inputs_(std::move(inputs)),
        elements_(std::move(elements)),
        output_(output),
        slice_(slice) {}

  int64_t blocks() const override { return count_blocks(longest(elements_), slice_); }
  int stages() const override { return 1; }

  void plan_stage(const Block& block, int, Plan& plan) override {
    const Range own = part(block, task().rank);
    for_each_peer([&](int peer) {
      send(plan, peer, inputs_[peer], part(block, peer));
      receive_scratch(plan, block.slot, peer, own.length());
    });
  }

  void finish_stage(const Block& block, int) override {
    const Range own = part(block, task().rank);
    combine(block.slot, inputs_[task().rank] + bytes(own.begin), output_ + bytes(own.begin),
            own.length());
  }

 private:
  Range part(const Block& block, int rank) const {
    return nth_range(elements_[rank], slice_, block.index);
  }

  const std::vector<std::byte*> inputs_;
  const std::vector<int64_t> elements_;
  std::byte* const output_;
  const int64_t slice_;
};

// Elements per slice for a rank that combines `longest` in all; a multiple of kSliceAlignment where
// there are several.
int64_t slice_elements(const ReductionTask& task, int64_t longest) {
  if (task.in_one_block()) return std::max<int64_t>(longest, 1);
  const auto most = static_cast<int64_t>(slice_bytes(task.size) / task.element_bytes());
  const int64_t steps =
      std::clamp<int64_t>(ceil_divide(longest, kSliceAlignment), 1, most / kSliceAlignment);
  return steps * kSliceAlignment;
}

}  // namespace

std::unique_ptr<ReductionSteps> all_reduce_steps(const ReductionTask& task, std::byte* input,
                                                 std::byte* output, int64_t elements) {
  const size_t received = elements * task.element_bytes() * (task.size - 1);
  if (received <= kOneExchangeBytes || task.size == 1 || task.in_one_block()) {
    return std::make_unique<OneExchangeAllReduce>(task, input, output, elements);
  }
  const int64_t slice = slice_elements(task, ceil_divide(elements, task.size));
  return std::make_unique<BlockedAllReduce>(task, input, output, elements, slice);
}

std::unique_ptr<ReductionSteps> reduce_steps(const ReductionTask& task, int root, std::byte* input,
                                             std::byte* output, int64_t elements) {
  return std::make_unique<RootReduce>(task, root, input, output, elements,
                                      slice_elements(task, elements));
}

std::unique_ptr<ReductionSteps> reduce_scatter_steps(const ReductionTask& task,
                                                     std::vector<std::byte*> inputs,
                                                     std::vector<int64_t> elements,
                                                     std::byte* output) {
  // The same on all ranks: they must cut alike.
  const int64_t slice = slice_elements(task, longest(elements));
  return std::make_unique<ScatterReduce>(task, std::move(inputs), std::move(elements), output,
                                         slice);
}

}  // namespace freescale
