#include "cpp/rendezvous/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include "cpp/rendezvous/tcp_listeners.h"

namespace freescale {

std::set<std::string> usable_interfaces() {
  std::set<std::string> found;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    const unsigned wanted = IFF_UP | IFF_RUNNING;
    if ((one->ifa_flags & (wanted | IFF_LOOPBACK)) != wanted || one->ifa_addr == nullptr) continue;
    const std::string address = text_of_address(*one->ifa_addr);
    if (!address.empty()) found.insert(std::string(one->ifa_name) + " " + address);
  }
  freeifaddrs(all);
  return found;
}

}  // namespace freescale
