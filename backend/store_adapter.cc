#include "backend/store_adapter.h"

#include <algorithm>
#include <chrono>
#include <exception>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend/errors.h"

namespace freescale {
namespace {

// Stores report "not there in time" and "connection lost" by the same exceptions. So waits are cut
// into slices: an exception well before the end of its slice is not about time.
constexpr std::chrono::milliseconds kSlice{1000};

}  // namespace

c10::intrusive_ptr<c10d::Store> fresh_substore(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank) {
  const int64_t making = store->add("freescale/makings/" + std::to_string(rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>("freescale/" + std::to_string(making), store);
}

Status StoreAdapter::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, value);
    return {};
  } catch (const std::exception& error) {
    return Status::system("the store cannot set \"" + key + "\": " + exception_text(error));
  }
}

Result<std::string> StoreAdapter::get(const std::string& key, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    const auto slice = std::clamp(left, std::chrono::milliseconds(1), kSlice);
    const Nanoseconds begin = now_ns();
    try {
      store_->wait({key}, slice);
      return store_->get_to_str(key);
    } catch (const std::exception& error) {
      const Nanoseconds now = now_ns();
      if (deadline.passed(now)) return Status::timed_out("no key \"" + key + "\" in the store");
      if (now - begin < std::chrono::nanoseconds(slice).count() / 2) {
        return Status::system("the store cannot get \"" + key + "\": " + exception_text(error));
      }
    }
  }
}

}  // namespace freescale
