#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "backend/errors.h"
#include "cpp/device/segment.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// The checks of a call's arguments. Each throws c10::ValueError with a message that names the rank,
// the operation and both values. Nothing has been sent then, but the call has its number already:
// the caller tells the peers (Engine::reject).

// A dense tensor of the CPU or of CUDA. `what` names the argument: "the input", "output 3".
void check_tensor(const CallSite& site, const at::Tensor& tensor, const char* what);
void check_tensors(const CallSite& site, const std::vector<at::Tensor>& tensors, const char* what);
// The one that all are on; the CPU if there is no tensor.
c10::Device check_device(const CallSite& site, const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& outputs);
// A tensor that can be written as a whole: no two of its elements share memory.
void check_output(const CallSite& site, const at::Tensor& tensor, const char* what);
void check_outputs(const CallSite& site, const std::vector<at::Tensor>& tensors, const char* what);

void check_dtype(const CallSite& site, const at::Tensor& tensor, const char* what,
                 c10::ScalarType expected, const char* expected_of);
void check_dtypes(const CallSite& site, const std::vector<at::Tensor>& tensors, const char* what,
                  c10::ScalarType expected, const char* expected_of);

// `count` things, called `what`, where there must be `expected` because of `reason`.
void check_count(const CallSite& site, const char* what, size_t count, size_t expected,
                 const char* reason);
void check_elements(const CallSite& site, const char* what, int64_t elements, int64_t expected,
                    const char* reason);

void check_root(const CallSite& site, int64_t root, int size);
void check_peer(const CallSite& site, int peer, int size);
void check_tag(const CallSite& site, int tag);

// The bytes that go to (or come from) each rank: `tensor` cut along dimension 0 by `splits`, or
// equally when there are none. `which` is "input" or "output".
std::vector<size_t> check_splits(const CallSite& site, const char* which, const at::Tensor& tensor,
                                 const std::vector<int64_t>& splits, int size);

// What a plan says of memory. The own rank's message must be received as long as it is sent; it is
// removed where it would copy memory onto itself. No byte that is received may be one that is also
// sent, or received twice.
void check_memory(const CallSite& site, Plan& plan);
void check_overlap(const CallSite& site, std::vector<Segment> outputs,
                   const std::vector<Segment>& inputs);
// The same for outputs that are not flat, and so are received into scratch memory first.
void check_strided_overlap(const CallSite& site, const std::vector<at::Tensor>& outputs);

}  // namespace freescale
