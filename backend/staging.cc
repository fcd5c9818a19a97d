#include "backend/staging.h"

#include <ATen/ops/empty.h>

#include "backend/plain_dispatch.h"

namespace freescale {
namespace {

at::Tensor empty_like_flat(const at::Tensor& tensor) {
  const at::TensorOptions options(tensor.device());
  return at::empty(tensor.sizes(), options.dtype(tensor.scalar_type()));
}

Segment memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// Does not break up memory that is shared copy-on-write, as it is only read.
Segment read_memory_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())), tensor.nbytes()};
}

bool needs_flattening(const std::vector<at::Tensor>& tensors) {
  return tensors.size() != 1 || !is_flat(tensors[0]);
}

}  // namespace

bool is_flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

Segment Staging::input(const at::Tensor& tensor) {
  if (is_flat(tensor)) return read_memory_of(tensor);
  const PlainDispatch guard;
  at::Tensor copy = empty_like_flat(tensor);
  copy.copy_(tensor);
  kept_.push_back(copy);
  return memory_of(copy);
}

Segment Staging::output(const at::Tensor& tensor) {
  if (is_flat(tensor)) return memory_of(tensor);
  const PlainDispatch guard;
  at::Tensor scratch = empty_like_flat(tensor);
  copies_.push_back({scratch, tensor});
  return memory_of(scratch);
}

Segment Staging::in_place(const at::Tensor& tensor) {
  if (is_flat(tensor)) return memory_of(tensor);
  const PlainDispatch guard;
  at::Tensor copy = empty_like_flat(tensor);
  copy.copy_(tensor);
  copies_.push_back({copy, tensor});
  return memory_of(copy);
}

Segment Staging::flat_input(const std::vector<at::Tensor>& tensors) {
  if (!needs_flattening(tensors)) return input(tensors[0]);
  const PlainDispatch guard;
  const at::Tensor flat = flat_scratch(tensors);
  fill(flat, tensors);
  kept_.push_back(flat);
  return memory_of(flat);
}

Segment Staging::flat_output(const std::vector<at::Tensor>& tensors) {
  if (!needs_flattening(tensors)) return output(tensors[0]);
  const PlainDispatch guard;
  const at::Tensor flat = flat_scratch(tensors);
  return_from(flat, tensors);
  kept_.push_back(flat);
  return memory_of(flat);
}

Segment Staging::flat_in_place(const std::vector<at::Tensor>& tensors) {
  if (!needs_flattening(tensors)) return in_place(tensors[0]);
  const PlainDispatch guard;
  const at::Tensor flat = flat_scratch(tensors);
  fill(flat, tensors);
  return_from(flat, tensors);
  kept_.push_back(flat);
  return memory_of(flat);
}

std::byte* Staging::scratch(size_t bytes) {
  const PlainDispatch guard;
  kept_.push_back(at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte)));
  return memory_of(kept_.back()).data;
}

at::Tensor Staging::flat_scratch(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  if (tensors.empty()) return at::empty({0}, at::TensorOptions(at::kCPU).dtype(at::kByte));
  const at::TensorOptions options(tensors[0].device());
  return at::empty({elements}, options.dtype(tensors[0].scalar_type()));
}

void Staging::fill(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    offset += tensor.numel();
  }
}

void Staging::return_from(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    copies_.push_back({flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()), tensor});
    offset += tensor.numel();
  }
}

void Staging::do_rest() {
  if (!has_rest()) return;
  const PlainDispatch guard;
  if (combine_ != nullptr) combine_();
  for (const CopyBack& copy : copies_) copy.to.copy_(copy.from);
}

std::vector<at::Tensor> Staging::tensors() const {
  std::vector<at::Tensor> all = kept_;
  for (const CopyBack& copy : copies_) all.push_back(copy.from);
  return all;
}

void Staging::release() {
  kept_.clear();
  copies_.clear();
  combine_ = nullptr;
}

}  // namespace freescale
