#include "cpp/base/service_thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <utility>

namespace freescale {
namespace {

// A new thread inherits the mask of the one that starts it.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// A batch thread gets its share of the processor, but does not take it away from a running one when
// it wakes. Needs no privilege; where it is refused, things are only slower.
void become_batch_thread() {
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

}  // namespace

std::thread start_service_thread(const char* name, std::function<void()> body) {
  const SignalsBlocked blocked;
  std::thread thread([body = std::move(body)] {
    become_batch_thread();
    body();
  });
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace freescale
