#include "backend/profiler_range.h"

#include <utility>
#include <vector>

namespace freescale {
namespace {

// Of this thread, in the order in which they began.
std::vector<std::shared_ptr<ProfilerRange>>& open_ranges() {
  thread_local std::vector<std::shared_ptr<ProfilerRange>> ranges;
  return ranges;
}

}  // namespace

const c10::DebugInfoBase* ProfilerRange::current_profiler() {
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
}

ProfilerRange::ProfilerRange(std::function<void()> end, const c10::DebugInfoBase* profiler)
    : profiler_(profiler), end_(std::move(end)) {}

std::shared_ptr<ProfilerRange> ProfilerRange::take(std::function<void()>& end) {
  end_those_over();
  const c10::DebugInfoBase* profiler = current_profiler();
  if (end == nullptr || profiler == nullptr) return nullptr;
  std::shared_ptr<ProfilerRange> range(new ProfilerRange(std::exchange(end, nullptr), profiler));
  open_ranges().push_back(range);
  return range;
}

// What is dropped ends as well, but tells a profiler only where the thread has one.
ProfilerRange::~ProfilerRange() {
  const std::shared_ptr<c10::ThreadLocalDebugInfo> kept = c10::ThreadLocalDebugInfo::current();
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(nullptr);
  end_ = nullptr;
  c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(kept);
}

void ProfilerRange::note_over() {
  over_.store(true, std::memory_order_release);
  if (thread_ == std::this_thread::get_id()) end_those_over();
}

void ProfilerRange::end_those_over() {
  std::vector<std::shared_ptr<ProfilerRange>>& ranges = open_ranges();
  if (ranges.empty()) return;
  const c10::DebugInfoBase* profiler = current_profiler();
  std::erase_if(ranges, [&](const std::shared_ptr<ProfilerRange>& range) {
    if (range->profiler_ != profiler) return true;
    if (!range->over_.load(std::memory_order_acquire)) return false;
    range->end_();
    return true;
  });
}

}  // namespace freescale
