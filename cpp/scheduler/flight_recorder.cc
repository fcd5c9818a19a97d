#include "cpp/scheduler/flight_recorder.h"

#include <algorithm>
#include <utility>

namespace freescale {

uint64_t FlightRecorder::begin(FlightRecord record) {
  if (records_.empty()) return 0;
  std::lock_guard<std::mutex> lock(mutex_);
  record.number = ++last_;
  slot(last_) = std::move(record);
  return last_;
}

void FlightRecorder::end(uint64_t number, const OpResult& result) {
  if (number == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  FlightRecord& record = slot(number);
  if (record.number != number) return;
  record.end = now_ns();
  record.paths = result.paths;
  record.state =
      result.status.ok() ? FlightRecord::State::kCompleted : FlightRecord::State::kFailed;
  record.failure = result.status.message();
}

std::vector<FlightRecord> FlightRecorder::records() const {
  std::vector<FlightRecord> found;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::copy_if(records_.begin(), records_.end(), std::back_inserter(found),
                 [](const FlightRecord& record) { return record.number != 0; });
  }
  std::sort(found.begin(), found.end(),
            [](const FlightRecord& a, const FlightRecord& b) { return a.number < b.number; });
  return found;
}

}  // namespace freescale
