#include "backend/store_adapter.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backend/errors.h"

namespace freescale {
namespace {

// Members of a group mostly come within this time. Until it is over a key is polled for, at growing
// intervals; later, a clone of the store waits for it. Cloning a TCPStore for every group is not
// cheap: it opens a connection, and every 25th took 5 s where this was measured.
constexpr std::chrono::seconds kPolling{1};
constexpr std::chrono::microseconds kLongestPause{10000};

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

bool StoreAdapter::poll(const std::string& key, Deadline deadline) {
  std::chrono::microseconds pause{100};
  while (!store_->check({key})) {
    if (deadline.passed(now_ns())) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
  return true;
}

Result<std::string> StoreAdapter::get(const std::string& key, Deadline deadline) {
  try {
    if (!poll(key, std::min(deadline, Deadline::after(kPolling)))) {
      if (deadline.passed(now_ns())) {
        return Status::timed_out("no key \"" + key + "\" in the store");
      }
      // Not the own connection: a blocking wait would lock out its other users.
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
      store_->clone()->wait({key}, std::max(left, std::chrono::milliseconds(1)));
    }
    return store_->get_to_str(key);
  } catch (const std::exception& error) {
    // Stores report "not there in time" and "connection lost" by the same exceptions; the clock
    // tells them apart, as a store waits until the deadline or longer.
    if (deadline.passed(now_ns())) {
      return Status::timed_out("no key \"" + key + "\" in the store");
    }
    return Status::system("the store cannot get \"" + key + "\": " + exception_text(error));
  }
}

}  // namespace freescale
