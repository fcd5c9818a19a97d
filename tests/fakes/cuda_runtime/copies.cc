// Copies, and memory that is set to a byte. Where the two ends lie shows in their addresses, so
// nothing here looks at a copy's kind or at the devices it names.

#include "tests/fakes/cuda_runtime/runtime.h"

using namespace fake_cudart;  // NOLINT: entry points have no namespace
using freescale::cuda::kDefaultStream;
using freescale::cuda::Stream;

namespace {

Code copy(const Below& below, void* to, const void* from, size_t bytes, Stream stream) {
  return below.driver().memcpy_async.code(address_of(to), address_of(from), bytes, stream);
}

// For the calls that are over when they return.
Code synchronized(const Below& below, Code submitted) {
  return submitted == Code::kSuccess ? below.driver().stream_synchronize.code(kDefaultStream)
                                     : submitted;
}

}  // namespace

FAKE_CUDART_EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                               cudaMemcpyKind, cudaStream_t stream) {
  return call(
      [&](const Below& below) { return copy(below, to, from, bytes, driver_stream(stream)); });
}

FAKE_CUDART_EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int,
                                                   size_t bytes, cudaStream_t stream) {
  return call(
      [&](const Below& below) { return copy(below, to, from, bytes, driver_stream(stream)); });
}

FAKE_CUDART_EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                          cudaMemcpyKind) {
  return call([&](const Below& below) {
    return synchronized(below, copy(below, to, from, bytes, kDefaultStream));
  });
}

// One copy for each row.
FAKE_CUDART_EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                                                 size_t from_pitch, size_t width, size_t height,
                                                 cudaMemcpyKind, cudaStream_t stream) {
  return call([&](const Below& below) {
    Code code = Code::kSuccess;
    for (size_t row = 0; row < height && code == Code::kSuccess; ++row) {
      code = copy(below, static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width, driver_stream(stream));
    }
    return code;
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes,
                                               cudaStream_t stream) {
  return call([&](const Below& below) {
    return below.memset_async(address_of(to), static_cast<unsigned char>(value), bytes,
                              driver_stream(stream));
  });
}

FAKE_CUDART_EXPORT cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return call([&](const Below& below) {
    return synchronized(below, below.memset_async(address_of(to), static_cast<unsigned char>(value),
                                                  bytes, kDefaultStream));
  });
}
