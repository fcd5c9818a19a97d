#pragma once

#include "cpp/device/cuda_calls.h"

// The calls themselves, in device_calls.cc, memory_calls.cc and stream_calls.cc.
namespace fake_cuda::calls {

using namespace freescale::cuda;  // NOLINT: the signatures are written for that namespace

#define FAKE_CUDA_DECLARE(member, name, version, arguments) Code member arguments;
FREESCALE_CUDA_CALLS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE

GetErrorName get_error_name;
BatchCopy memcpy_batch_async;
BatchCopyWithFailIndex memcpy_batch_async_with_fail_index;

}  // namespace fake_cuda::calls
