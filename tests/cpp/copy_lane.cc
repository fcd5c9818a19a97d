#include "tests/cpp/copy_lane.h"

#include <atomic>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/device/ahead_copy_queue.h"
#include "cpp/device/proxy_copy_queue.h"
#include "tests/cpp/check.h"

namespace freescale::testing {
namespace {

using cuda::has_reached;

constexpr char kUntouched = '\xee';

template <typename Queue>
std::unique_ptr<cuda::CopyQueue> created(Result<std::unique_ptr<Queue>> queue) {
  CHECK_OK(queue);
  return std::move(queue.value());
}

const char* name_of(Submission submission) {
  return submission == Submission::kAhead ? "ahead" : "by a proxy";
}

void on_engine_order(Submission submission, const char* order, const QueueTest& body) {
  try {
    on_each_version({{"FAKE_CUDA_ENGINE_ORDER", order}},
                    [&](StandIn& stand_in) { body(stand_in, submission); });
  } catch (...) {
    std::printf("  submitted %s\n", name_of(submission));
    throw;
  }
}

}  // namespace

struct WordPool::Memory {
  explicit Memory(const cuda::PrimaryContext& context)
      : words(64), registered(cuda::PinnedWords::register_memory(context, words)) {
    CHECK_OK(registered);
  }
  std::vector<std::atomic<uint32_t>> words;
  Result<cuda::PinnedWords> registered;
};

WordPool::WordPool(const cuda::PrimaryContext& context) : memory_(*new Memory(context)) {}

cuda::PinnedWord WordPool::next() {
  CHECK_LT(used_, memory_.words.size());
  return memory_.registered.value()[used_++];
}

CopyLane::CopyLane(StandIn& stand_in, WordPool& words, Submission how, size_t bytes, uint32_t first)
    : on(stand_in), submission(how), go(words.next()), progress(words.next()), done(words.next()) {
  for (size_t i = 0; i < bytes; ++i) content += static_cast<char>(i * 7 + i / 256);
  from = on.allocate(bytes);
  to = on.allocate(bytes);
  on.write(from, content);
  on.write(to, std::string(bytes, kUntouched));
  const cuda::ChunkOptions options{.chunk_bytes = kLaneChunk, .first = first};
  const auto& context = on.context();
  queue = how == Submission::kAhead
              ? created(cuda::AheadCopyQueue::create(context, go, progress, options))
              : created(cuda::ProxyCopyQueue::create(context, progress, options));
}

cuda::CopyRequest CopyLane::request(std::vector<cuda::WordValue> ready) const {
  cuda::CopyRequest request;
  request.pieces = {piece(0, content.size())};
  request.ready = std::move(ready);
  request.done = {{done, 1}};
  return request;
}

cuda::CopyPiece CopyLane::piece(size_t offset, size_t bytes) const {
  return {to + offset, from + offset, bytes};
}

uint32_t CopyLane::submit(cuda::CopyRequest request) const {
  const Result<uint32_t> last = queue->submit(std::move(request));
  CHECK_OK(last);
  return last.value();
}

void CopyLane::drive_until(const std::function<bool()>& reached) const {
  while (!reached()) {
    CHECK_OK(queue->drive());
    std::this_thread::yield();
  }
}

void CopyLane::await_progress(uint32_t chunk) const {
  drive_until([&] { return has_reached(progress.host->load(), chunk); });
}

void CopyLane::await_drained() const {
  drive_until([&] { return queue->drained(); });
}

void CopyLane::await_standstill() const {
  drive_until([&] { return queue->in_flight() == 0; });
  if (submission == Submission::kAhead) {
    on.await([](const FakeCudaState& state) { return state.polling_waits == 1; });
  }
  const Result<bool> handed = queue->drive();
  CHECK_OK(handed);
  CHECK(!handed.value());
}

void CopyLane::expect_arrived(size_t from_offset, size_t to_offset) const {
  const size_t bytes = to_offset - from_offset;
  CHECK(on.read(to + from_offset, bytes) == content.substr(from_offset, bytes));
}

void CopyLane::expect_untouched(size_t from_offset, size_t to_offset) const {
  const size_t bytes = to_offset - from_offset;
  CHECK(on.read(to + from_offset, bytes) == std::string(bytes, kUntouched));
}

void CopyLane::expect_arrived(size_t bytes) const {
  if (bytes > 0) expect_arrived(0, bytes);
  if (bytes < content.size()) expect_untouched(bytes, content.size());
}

Standstill::Standstill(StandIn& stand_in, WordPool& words) : end_(words.next()) {
  CHECK(stand_in.launch_kernel(stand_in.stream(), "spin",
                               reinterpret_cast<const uint32_t*>(end_.host)) ==
        cuda::Code::kSuccess);
  stand_in.await([](const FakeCudaState& state) { return state.running_kernels == 1; });
}

void on_each_engine(Submission submission, const QueueTest& body) {
  on_engine_order(submission, "readiness", body);
  on_engine_order(submission, "head_of_line", body);
}

void on_each_queue(const QueueTest& body) {
  on_each_engine(Submission::kAhead, body);
  on_each_engine(Submission::kProxy, body);
}

void on_each_overtaking_queue(const QueueTest& body) {
  on_engine_order(Submission::kAhead, "readiness", body);
  on_each_engine(Submission::kProxy, body);
}

}  // namespace freescale::testing
