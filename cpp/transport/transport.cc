#include "cpp/transport/transport.h"

namespace freescale {

void Link::fail(const Status& why) {
  if (failing_.exchange(true, std::memory_order_acq_rel)) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
}

}  // namespace freescale
