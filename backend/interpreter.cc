#include "backend/interpreter.h"

#include <atomic>

namespace freescale {
namespace {

std::atomic<WithoutInterpreterLock> runner{nullptr};

}  // namespace

void set_without_interpreter_lock(WithoutInterpreterLock run) { runner.store(run); }

void run_without_interpreter_lock(const std::function<void()>& body) {
  if (const WithoutInterpreterLock run = runner.load(); run != nullptr) {
    run(body);
  } else {
    body();
  }
}

}  // namespace freescale
