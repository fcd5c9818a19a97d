#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "backend/errors.h"
#include "cpp/device/segment.h"

namespace freescale {

// The dtype a call is known by; the arguments are not checked yet.
inline c10::ScalarType dtype_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.scalar_type() : c10::ScalarType::Undefined;
}

inline c10::ScalarType dtype_of(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? c10::ScalarType::Undefined : dtype_of(tensors[0]);
}

// The n-th of `count` equal parts.
inline Segment equal_part(const Segment& whole, int n, int count) {
  const size_t bytes = whole.bytes / count;
  return {whole.data + bytes * n, bytes};
}

// The one list of tensors in torch's lists of lists, which only the root gives. Elsewhere there is
// none, or an empty one.
inline std::vector<at::Tensor> only_list(const CallSite& site,
                                         const std::vector<std::vector<at::Tensor>>& lists,
                                         bool is_root, const char* what) {
  if (is_root) {
    TORCH_CHECK_VALUE(lists.size() == 1, site, "got ", lists.size(), " ", what,
                      " lists but the root gives 1");
    return lists[0];
  }
  for (const std::vector<at::Tensor>& list : lists) {
    TORCH_CHECK_VALUE(list.empty(), site, "got ", list.size(), " ", what,
                      " tensors but only the root gives any");
  }
  return {};
}

}  // namespace freescale
