#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"

namespace freescale {

// The few calls that rendezvous needs of a shared store. backend/ adapts c10d::Store to it; tests
// use an in-memory one. Thread-safe as far as the adapted store is.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Blocks until the key exists; kTimedOut after the deadline, naming the key.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
};

}  // namespace freescale
