#include "cpp/scheduler/plan.h"

namespace freescale {

std::string_view op_name(OpKind op) {
  constexpr std::string_view kNames[] = {
      "none",
      "all_to_all_single",
      "all_to_all",
      "all_gather",
      "all_gather_into_tensor",
      "all_gather_coalesced",
      "broadcast",
      "scatter",
      "gather",
      "send",
      "recv",
      "barrier",
      "all_reduce",
      "all_reduce_coalesced",
      "reduce",
      "reduce_scatter",
      "reduce_scatter_tensor",
      "reduce_scatter_tensor_coalesced",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(OpKind::kCount));
  // The number may come from another process.
  return op < OpKind::kCount ? kNames[static_cast<size_t>(op)] : "an unknown operation";
}

}  // namespace freescale
