#pragma once

#include <functional>

namespace freescale {

// How to run code without holding the interpreter's lock (the GIL). module.cc, which alone knows
// Python, sets it; until then the code runs as it is.
using WithoutInterpreterLock = void (*)(const std::function<void()>& body);

void set_without_interpreter_lock(WithoutInterpreterLock run);

// Runs `body`, which may wait for threads that want the GIL. Destructors need this: Python drops
// the last reference to a group with the GIL held, and closing the group waits for completions,
// which may run Python callbacks.
void run_without_interpreter_lock(const std::function<void()>& body);

// How to let Python act on signals that came while a thread blocks in here: a no-op on all threads
// but the main one; throws what a handler raised (KeyboardInterrupt). Set by module.cc too.
using SignalCheck = void (*)();

void set_signal_check(SignalCheck check);
void check_signals();

}  // namespace freescale
