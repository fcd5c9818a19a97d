#pragma once

#include <chrono>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "backend/errors.h"
#include "cpp/base/clock.h"
#include "cpp/base/priority.h"

namespace freescale {

// One call of one operation: who calls what, how urgently and until when.
struct Call {
  CallSite site;
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of the first tensor
  Priority priority = Priority::kNormal;
  std::chrono::milliseconds timeout{0};
  Deadline deadline = Deadline::never();
  Nanoseconds begin = 0;
  // A receive whose source is open.
  bool from_anyone = false;
  // The caller goes straight into wait().
  bool caller_waits = false;
};

// The user's tensors and other arguments of a call, for its Work and for profilers.
struct Operands {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<int64_t> input_splits;
  std::vector<int64_t> output_splits;
};

}  // namespace freescale
