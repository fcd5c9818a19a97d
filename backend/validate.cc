#include "backend/validate.h"

#include <algorithm>
#include <optional>

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

#include "backend/dtype.h"
#include "backend/staging.h"

namespace freescale {
namespace {

bool same_memory(const Message& a, const Message& b) {
  const auto same = [](const Segment& x, const Segment& y) {
    return x.data == y.data && x.bytes == y.bytes;
  };
  return std::equal(a.segments.begin(), a.segments.end(), b.segments.begin(), b.segments.end(),
                    same);
}

std::vector<Segment> segments_of(const std::vector<Message>& messages) {
  std::vector<Segment> segments;
  for (const Message& message : messages) {
    segments.insert(segments.end(), message.segments.begin(), message.segments.end());
  }
  return segments;
}

}  // namespace

void check_tensor(const CallSite& site, const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.defined(), site, what, " is not defined");
  TORCH_CHECK_VALUE(tensor.device().is_cpu() || tensor.device().is_cuda(), site, what,
                    " is on device ", tensor.device(),
                    " but this backend moves tensors of devices cpu and cuda");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_nested(), site, what,
                    " has layout ", tensor.is_nested() ? "nested" : c10::str(tensor.layout()),
                    " but only torch.strided tensors can be moved; convert it with to_dense()");
  TORCH_CHECK_VALUE(tensor.has_storage(), site, what, " has no storage");
}

void check_tensors(const CallSite& site, const std::vector<at::Tensor>& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) check_tensor(site, tensor, what);
}

c10::Device check_device(const CallSite& site, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& outputs) {
  std::optional<c10::Device> device;
  for (const auto* tensors : {&inputs, &outputs}) {
    for (const at::Tensor& tensor : *tensors) {
      if (!device) device = tensor.device();
      TORCH_CHECK_VALUE(tensor.device() == *device, site, "one tensor is on device ", *device,
                        " and another one on ", tensor.device(),
                        "; all tensors of a call must be on one device");
    }
  }
  return device.value_or(c10::Device(c10::kCPU));
}

void check_output(const CallSite& site, const at::Tensor& tensor, const char* what) {
  check_tensor(site, tensor, what);
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, site, what,
                    " of shape ", tensor.sizes(), " and strides ", tensor.strides(),
                    " overlaps itself; clone() it before it is written to");
}

void check_outputs(const CallSite& site, const std::vector<at::Tensor>& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) check_output(site, tensor, what);
}

void check_dtype(const CallSite& site, const at::Tensor& tensor, const char* what,
                 c10::ScalarType expected, const char* expected_of) {
  TORCH_CHECK_VALUE(tensor.scalar_type() == expected, site, what, " has dtype ",
                    dtype_name(tensor.scalar_type()), " but ", expected_of, " has dtype ",
                    dtype_name(expected));
}

void check_dtypes(const CallSite& site, const std::vector<at::Tensor>& tensors, const char* what,
                  c10::ScalarType expected, const char* expected_of) {
  for (const at::Tensor& tensor : tensors) check_dtype(site, tensor, what, expected, expected_of);
}

void check_count(const CallSite& site, const char* what, size_t count, size_t expected,
                 const char* reason) {
  TORCH_CHECK_VALUE(count == expected, site, "got ", count, " ", what, " but ", reason, " ",
                    expected);
}

void check_elements(const CallSite& site, const char* what, int64_t elements, int64_t expected,
                    const char* reason) {
  TORCH_CHECK_VALUE(elements == expected, site, what, " has ", elements, " elements but ", reason,
                    " ", expected);
}

void check_root(const CallSite& site, int64_t root, int size) {
  TORCH_CHECK_VALUE(root >= 0 && root < size, site, "root rank ", root,
                    " is not a rank of the group, which has ", size);
}

void check_peer(const CallSite& site, int peer, int size) {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size, site, "rank ", peer,
                    " is not a rank of the group, which has ", size);
  TORCH_CHECK_VALUE(peer != site.rank, site, "rank ", peer,
                    " is the calling rank itself; a rank cannot send to or receive from itself");
}

void check_tag(const CallSite& site, int tag) {
  TORCH_CHECK_VALUE(tag >= 0, site, "tag ", tag, " is negative");
}

std::vector<size_t> check_splits(const CallSite& site, const char* which, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, int size) {
  TORCH_CHECK_VALUE(tensor.dim() >= 1, site, "the ", which,
                    " is a scalar; it needs a dimension 0 to cut into ", size, " pieces");
  const int64_t rows = tensor.size(0);
  const size_t row_bytes = rows == 0 ? 0 : tensor.nbytes() / rows;
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % size == 0, site, "dim 0 of the ", which, " has ", rows,
                      " rows, which cannot be cut equally for ", size, " ranks; give ", which,
                      "_split_sizes");
    return std::vector<size_t>(size, row_bytes * (rows / size));
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size), site, "got ", splits.size(), " ",
                    which, " splits but the group has ", size, " ranks");
  std::vector<size_t> bytes(size);
  int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) {
    TORCH_CHECK_VALUE(splits[rank] >= 0, site, which, " split ", splits[rank], " of rank ", rank,
                      " is negative");
    sum += splits[rank];
    bytes[rank] = row_bytes * splits[rank];
  }
  TORCH_CHECK_VALUE(sum == rows, site, which, " splits sum to ", sum, " but dim 0 of the ", which,
                    " has ", rows, " rows");
  return bytes;
}

void check_memory(const CallSite& site, Plan& plan) {
  const auto is_own = [&](const Message& message) { return message.peer == site.rank; };
  const auto sent = std::find_if(plan.sends.begin(), plan.sends.end(), is_own);
  const auto received = std::find_if(plan.receives.begin(), plan.receives.end(), is_own);
  if (sent != plan.sends.end() && received != plan.receives.end()) {
    TORCH_CHECK_VALUE(sent->bytes() == received->bytes(), site, "the input holds ", sent->bytes(),
                      " bytes for the own rank but the output takes ", received->bytes());
    if (same_memory(*sent, *received)) {
      plan.sends.erase(sent);
      plan.receives.erase(received);
    }
  }
  check_overlap(site, segments_of(plan.receives), segments_of(plan.sends));
}

void check_overlap(const CallSite& site, std::vector<Segment> outputs,
                   const std::vector<Segment>& inputs) {
  const auto before = [](const Segment& a, const Segment& b) { return a.data < b.data; };
  std::erase_if(outputs, [](const Segment& segment) { return segment.bytes == 0; });
  std::sort(outputs.begin(), outputs.end(), before);
  for (size_t i = 1; i < outputs.size(); ++i) {
    const std::ptrdiff_t shared = outputs[i - 1].data + outputs[i - 1].bytes - outputs[i].data;
    TORCH_CHECK_VALUE(shared <= 0, site, "two outputs of ", outputs[i - 1].bytes, " and ",
                      outputs[i].bytes, " bytes overlap by ", shared, " bytes");
  }
  for (const Segment& input : inputs) {
    if (input.bytes == 0) continue;
    auto next = std::upper_bound(outputs.begin(), outputs.end(), input, before);
    const bool hits_next = next != outputs.end() && next->data < input.data + input.bytes;
    const bool hits_previous =
        next != outputs.begin() && std::prev(next)->data + std::prev(next)->bytes > input.data;
    TORCH_CHECK_VALUE(!hits_next && !hits_previous, site, "an output overlaps an input of ",
                      input.bytes, " bytes, which would be overwritten before it is sent");
  }
}

void check_strided_overlap(const CallSite& site, const std::vector<at::Tensor>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (is_flat(outputs[i])) continue;  // two flat ones are seen by check_overlap()
    for (size_t k = 0; k < outputs.size(); ++k) {
      const at::MemOverlapStatus status = at::get_overlap_status(outputs[i], outputs[k]);
      TORCH_CHECK_VALUE(k == i || (status != at::MemOverlapStatus::Full &&
                                   status != at::MemOverlapStatus::Partial),
                        site, "outputs ", std::min(i, k), " and ", std::max(i, k), " overlap");
    }
  }
}

}  // namespace freescale
