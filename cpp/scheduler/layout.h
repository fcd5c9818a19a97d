#pragma once

#include <cstdint>
#include <string>

namespace freescale {

// What the ranks of a collective must agree on beside operation, dtype and the sizes of the single
// messages. It travels in every header as one number.
struct Layout {
  int root = -1;         // of collectives that have one
  int reduction = -1;    // of those that combine: place in torch's list, SUM = 0 ... PREMUL_SUM = 8
  int tensors = 0;       // of coalesced ones
  int64_t elements = 0;  // of those that combine, over all tensors: messages are only parts
  bool by_host = false;  // equal parts that each host gathers before they go to another one

  // Distinct for roots below 65535, fewer than 255 tensors and fewer than 2^35 elements; beyond,
  // two layouts may be taken for the same. Zero for a layout that says nothing.
  uint64_t pack() const;
  static Layout unpack(uint64_t packed);

  // "root 1, SUM, 3 tensors, 400 elements": only what it says.
  std::string describe() const;
};

}  // namespace freescale
