#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpp/transport/shm/doorbell.h"
#include "cpp/transport/transport.h"

namespace freescale::testing {

// Both ends of one link inside this process, and what wakes each end's owner.
class LinkPair {
 public:
  struct End {
    std::shared_ptr<Link> link;
    Doorbell* doorbell = nullptr;
  };
  virtual ~LinkPair() = default;
  End left;
  End right;
};

// Every implementation of Link under a name: transport_test.cc runs over all of them.
struct LinkMaker {
  const char* name;
  std::unique_ptr<LinkPair> (*make)();
};
const std::vector<LinkMaker>& link_makers();

}  // namespace freescale::testing
