#include "cpp/device/chunk_ledger.h"

#include <algorithm>
#include <utility>

namespace freescale::cuda {
namespace {

// Operations of a stream that may be ahead of the GPU: a stream's queue in the driver is known to
// hold about a thousand, and a call that finds it full blocks while it holds the context's lock.
constexpr uint32_t kOperationsAhead = 2 * ChunkedCopy::kOperations;

uint32_t later(uint32_t a, uint32_t b) { return has_reached(a, b) ? a : b; }
uint32_t earlier(uint32_t a, uint32_t b) { return has_reached(a, b) ? b : a; }

void keep_for_ever(std::vector<std::shared_ptr<const void>> memory) {
  static std::mutex mutex;
  // Leaked on purpose: streams go on while the process ends.
  static auto* const kept = new std::vector<std::shared_ptr<const void>>();
  const std::lock_guard lock(mutex);
  kept->insert(kept->end(), std::make_move_iterator(memory.begin()),
               std::make_move_iterator(memory.end()));
}

}  // namespace

ChunkLedger::ChunkLedger(PinnedWord progress, uint32_t first)
    : progress_(progress),
      over_(first),
      handed_(first),
      released_(first),
      ready_(first),
      added_(first) {
  progress_.host->store(first, std::memory_order_release);
}

ChunkLedger::~ChunkLedger() {
  update();
  for (Open& request : open_) {
    const bool in_stream = !has_reached(request.before, earlier(request.cut, handed_));
    if (in_stream && request.keep != nullptr) lost_.push_back(std::move(request.keep));
  }
  if (!lost_.empty()) keep_for_ever(std::move(lost_));
}

uint32_t ChunkLedger::add(CopyRequest&& request, const ChunkedCopy& copy, bool handed_over) {
  const std::lock_guard lock(mutex_);
  Open open;
  open.before = added_;
  added_ += copy.chunks();
  open.cut = open.last = added_;
  open.operations = copy.operations();
  open.ready = std::move(request.ready);
  open.gate = request.gate;
  open.keep = std::move(request.keep);
  if (handed_over) handed_ = added_;
  open_.push_back(std::move(open));
  if (closed_) drop(open_.back());
  return added_;
}

Status ChunkLedger::admit() const {
  const std::lock_guard lock(mutex_);
  if (failed_ || closed_) return Status::cancelled("the copy queue was given up");
  return has_room_now() ? Status() : Status::invalid_argument("the copy queue has no room");
}

uint32_t ChunkLedger::last() const {
  const std::lock_guard lock(mutex_);
  return added_;
}

std::optional<uint32_t> ChunkLedger::claim() {
  const std::lock_guard lock(mutex_);
  update();
  const uint32_t next = past_dropped(handed_) + 1;
  if (failed_ || !has_reached(released_, next)) return std::nullopt;
  handed_ = next;
  return next;
}

void ChunkLedger::fail(std::shared_ptr<const void> keep) {
  const std::lock_guard lock(mutex_);
  failed_ = true;
  if (keep != nullptr) lost_.push_back(std::move(keep));
}

void ChunkLedger::let_go() {
  std::vector<std::shared_ptr<const void>> finished;  // ends after the lock
  const std::lock_guard lock(mutex_);
  update();
  finished.swap(finished_);
}

bool ChunkLedger::has_room() const {
  const std::lock_guard lock(mutex_);
  return has_room_now();
}

bool ChunkLedger::has_room_now() const {
  const uint32_t over = count_over();
  uint32_t operations = ChunkedCopy::kOperations;
  for (const Open& request : open_) {
    if (!has_reached(over, request.last)) operations += request.operations;
  }
  return operations <= kOperationsAhead;
}

bool ChunkLedger::is_over(uint32_t last) const {
  const std::lock_guard lock(mutex_);
  return has_reached(count_over(), last);
}

uint32_t ChunkLedger::releasable() {
  const std::lock_guard lock(mutex_);
  update();
  return failed_ ? 0 : count(released_, ready_);
}

uint32_t ChunkLedger::release(uint32_t chunks) {
  const std::lock_guard lock(mutex_);
  update();
  if (failed_) return released_;
  for (chunks = std::min(chunks, count(released_, ready_)); chunks > 0; --chunks) {
    released_ = past_dropped(released_) + 1;
  }
  return released_;
}

uint32_t ChunkLedger::in_flight() {
  const std::lock_guard lock(mutex_);
  update();
  return failed_ ? 0 : count(over_, released_);
}

bool ChunkLedger::drained() const {
  const std::lock_guard lock(mutex_);
  return !failed_ && count_over() == added_;
}

void ChunkLedger::abandon(uint32_t last) {
  const std::lock_guard lock(mutex_);
  for (Open& request : open_) {
    if (request.last == last) drop(request);
  }
}

void ChunkLedger::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (Open& request : open_) drop(request);
}

void ChunkLedger::drop(Open& request) {
  request.ready.clear();
  request.gate.reset();
  request.cut = earlier(request.cut, later(request.before, handed_));
}

uint32_t ChunkLedger::count_over() const {
  // Behind `over_` where the last chunks were dropped.
  uint32_t over = later(over_, progress_.host->load(std::memory_order_acquire));
  for (const Open& request : open_) {
    if (!has_reached(over, request.cut)) break;
    over = later(over, request.last);
  }
  return over;
}

void ChunkLedger::update() {
  over_ = count_over();
  // Chunks are over that were not released where they were dropped, and after close().
  for (uint32_t* number : {&handed_, &released_, &ready_}) *number = later(*number, over_);
  while (!open_.empty() && has_reached(over_, open_.front().last)) {
    if (open_.front().keep != nullptr) finished_.push_back(std::move(open_.front().keep));
    open_.pop_front();
  }
  for (Open& request : open_) {
    if (has_reached(ready_, request.last)) continue;
    ready_ = later(ready_, request.ready_up_to());
    if (!has_reached(ready_, request.cut)) break;
    ready_ = request.last;
  }
}

uint32_t ChunkLedger::Open::ready_up_to() {
  const auto reached = [](const WordValue& word) { return word.reached(); };
  if (!std::all_of(ready.begin(), ready.end(), reached)) return before;
  ready.clear();
  if (!gate.has_value()) return last;
  const uint32_t word = gate->word.host->load(std::memory_order_acquire);
  if (!has_reached(word, gate->first)) return before;
  return before + std::min(word - gate->first, last - before - 1) + 1;
}

uint32_t ChunkLedger::count(uint32_t from, uint32_t to) const {
  uint32_t chunks = to - from;
  for (const Open& request : open_) {
    const uint32_t begin = later(from, request.cut), end = earlier(to, request.last);
    if (!has_reached(begin, end)) chunks -= end - begin;
  }
  return chunks;
}

uint32_t ChunkLedger::past_dropped(uint32_t number) const {
  for (const Open& request : open_) {
    if (has_reached(number, request.cut)) number = later(number, request.last);
  }
  return number;
}

}  // namespace freescale::cuda
