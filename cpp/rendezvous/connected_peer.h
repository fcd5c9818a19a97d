#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "cpp/base/unique_fd.h"
#include "cpp/rendezvous/endpoint.h"
#include "cpp/transport/transport.h"

namespace freescale {

// A link and what keeps watch over its other end.
struct ConnectedPeer {
  EngineId engine{};
  std::shared_ptr<Link> link;
  std::string probe;  // what was found out while connecting
  // Of a process of this host; others are watched by the link itself.
  std::shared_ptr<UniqueFd> socket = nullptr;  // hangs up when the peer closes its mesh
  UniqueFd pidfd;  // readable when the peer's process has ended; may be invalid
};

// How often who waits for a peer looks whether it may still come.
inline constexpr std::chrono::milliseconds kLookAgain{250};

}  // namespace freescale
