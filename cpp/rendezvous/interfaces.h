#pragma once

#include <set>
#include <string>

namespace freescale {

// The interfaces of this host that can be used now: up, with a carrier, and beyond the host. Each
// with one of its addresses; one with two is here twice.
std::set<std::string> usable_interfaces();

}  // namespace freescale
