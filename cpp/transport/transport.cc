#include "cpp/transport/transport.h"

namespace freescale {

bool Link::fail(const Status& why) {
  if (failing_.exchange(true, std::memory_order_acq_rel)) return false;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  return true;
}

void Link::give_up(const Status& why) {
  if (fail(why) && tell_peer_) tell_peer_(why.message());
}

}  // namespace freescale
