#pragma once

#include <sys/socket.h>

#include <set>
#include <string>
#include <string_view>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"

namespace freescale {

// Where a process listens for TCP: the kernel answers for as long as the process lives, whatever it
// does, and refuses once it is dead. A network that is down does neither. So who cannot connect
// finds out here, and nowhere else, which of the two it is: UCX reports both as the same error.

// The bytes of a sockaddr_in or sockaddr_in6.
using SocketAddress = std::string;

// Those of this process that are bound to an address.
std::set<SocketAddress> tcp_listeners();
// Drops those at which who knocks from here finds this host: loopback, and bridges that hosts have
// of the same address.
void drop_own(std::set<SocketAddress>& listeners);

// Whether these bytes of another process are such an address.
bool is_socket_address(std::string_view bytes);
// Of either family, without the port; else empty.
std::string text_of_address(const sockaddr& address);

// Tries all of them at once. Ok when one accepts; kPeerLost when each refuses; else kTimedOut. As
// only all count, one that leads to a stranger from here makes nobody dead.
Status knock(const std::set<SocketAddress>& listeners, Deadline deadline);

}  // namespace freescale
