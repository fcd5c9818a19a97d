#pragma once

#include <string>
#include <tuple>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "backend/call.h"

namespace freescale {

// What a communication record says of a group.
struct RecordedGroup {
  std::string name;
  std::string description;
  int size = 0;
  // Global rank of its first member, and the step to the next one; 0 where the steps differ.
  int first = 0;
  int stride = 1;
};

// Calls submit() inside a communication record, which profilers (Kineto) and execution traces turn
// into a row with sizes and dtype. Putting it together costs over a microsecond, so it is left out
// while nobody listens.
template <typename Group, typename Submit>
void record_call(const Call& call, const Operands& operands, bool point_to_point, Group group,
                 Submit submit) {
  if (!at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) {
    submit();
    return;
  }
  const auto count = [](const std::vector<at::Tensor>& tensors) {
    int64_t elements = 0;
    for (const at::Tensor& tensor : tensors) elements += tensor.numel();
    return elements;
  };
  const RecordedGroup recorded = group();
  const auto sequence = std::make_tuple(static_cast<int64_t>(call.site.sequence), point_to_point);
#ifdef RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP  // torch 2.12 and later
  RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
      sequence, std::make_tuple(recorded.name, recorded.description), operands.inputs,
      operands.outputs, call.site.rank, std::string(op_name(call.site.op)), count(operands.inputs),
      count(operands.outputs), call.dtype, operands.input_splits, operands.output_splits,
      recorded.first, recorded.stride, recorded.size, !call.caller_waits);
#else
  RECORD_PARAM_COMMS_DATA(sequence, std::make_tuple(recorded.name, recorded.description),
                          operands.inputs, operands.outputs, call.site.rank,
                          std::string(op_name(call.site.op)), count(operands.inputs),
                          count(operands.outputs), call.dtype, operands.input_splits,
                          operands.output_splits, recorded.first, recorded.stride, recorded.size);
#endif
  submit();
}

}  // namespace freescale
