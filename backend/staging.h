#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cpp/device/segment.h"

namespace freescale {

// Gives the tensors of one call as flat memory. A tensor that is laid out that way is used in
// place, without a copy; any other one gets scratch memory, owned here, filled now (inputs) or
// copied back at the end (outputs). The caller keeps the tensors themselves alive. Scratch memory
// is where the tensor is; on a device it is filled when the current stream gets there.
class Staging {
 public:
  // Holds the tensor's elements in row-major order.
  Segment input(const at::Tensor& tensor);
  // Will be received into.
  Segment output(const at::Tensor& tensor);
  // Both: is read, then received into.
  Segment in_place(const at::Tensor& tensor);

  // The same for several tensors of one dtype, one after the other in one piece of memory.
  Segment flat_input(const std::vector<at::Tensor>& tensors);
  Segment flat_output(const std::vector<at::Tensor>& tensors);
  Segment flat_in_place(const std::vector<at::Tensor>& tensors);

  // `bytes` of memory, not initialised.
  std::byte* scratch(size_t bytes);
  // Keeps a tensor that the caller made, or that has to outlive the call.
  void keep(at::Tensor tensor) { kept_.push_back(std::move(tensor)); }

  // All memory that is owned here.
  std::vector<at::Tensor> tensors() const;

  // What else is to be done with what has arrived, before copies back.
  void set_combine(std::function<void()> combine) { combine_ = std::move(combine); }
  // Whether anything is left to do once all has arrived.
  bool has_rest() const { return combine_ != nullptr || !copies_.empty(); }
  // Does that: combines, and copies from scratch memory to the outputs it stands for; on a device
  // when its current stream gets there. Throws what ATen throws.
  void do_rest();
  // Lets go of all memory.
  void release();

 private:
  struct CopyBack {
    at::Tensor from;
    at::Tensor to;
  };
  at::Tensor flat_scratch(const std::vector<at::Tensor>& tensors);
  void fill(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);
  void return_from(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

  std::vector<at::Tensor> kept_;
  std::vector<CopyBack> copies_;
  std::function<void()> combine_;
};

// Whether the tensor's memory is its elements in row-major order, as they are.
bool is_flat(const at::Tensor& tensor);

}  // namespace freescale
