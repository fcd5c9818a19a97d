#include "backend/interpreter.h"

#include <atomic>

namespace freescale {
namespace {

std::atomic<WithoutInterpreterLock> runner{nullptr};
std::atomic<SignalCheck> signal_check{nullptr};

}  // namespace

void set_without_interpreter_lock(WithoutInterpreterLock run) { runner.store(run); }

void run_without_interpreter_lock(const std::function<void()>& body) {
  if (const WithoutInterpreterLock run = runner.load(); run != nullptr) {
    run(body);
  } else {
    body();
  }
}

void set_signal_check(SignalCheck check) { signal_check.store(check); }

void check_signals() {
  if (const SignalCheck check = signal_check.load(); check != nullptr) check();
}

}  // namespace freescale
