// What torch's libraries import and the stand-in does not have: each says its name and fails.

#include <cstdio>

#include "tests/fakes/cuda_runtime/runtime.h"

namespace {

cudaError_t refuse(const char* name) {
  std::fprintf(stderr, "the stand-in CUDA runtime has no %s\n", name);
  return fake_cudart::finish(cudaErrorNotSupported);
}

}  // namespace

// Declared without arguments, which none looks at, so by names that the headers do not know.
#define FAKE_CUDART_REFUSE(name)                               \
  FAKE_CUDART_EXPORT cudaError_t fake_##name() __asm__(#name); \
  cudaError_t fake_##name() { return refuse(#name); }

// Graphs
FAKE_CUDART_REFUSE(cudaGraphAddNode)
FAKE_CUDART_REFUSE(cudaGraphConditionalHandleCreate)
FAKE_CUDART_REFUSE(cudaGraphDebugDotPrint)
FAKE_CUDART_REFUSE(cudaGraphDestroy)
FAKE_CUDART_REFUSE(cudaGraphExecDestroy)
FAKE_CUDART_REFUSE(cudaGraphGetNodes)
FAKE_CUDART_REFUSE(cudaGraphInstantiateWithFlags)
FAKE_CUDART_REFUSE(cudaGraphLaunch)
FAKE_CUDART_REFUSE(cudaGraphNodeGetDependencies)
FAKE_CUDART_REFUSE(cudaStreamBeginCapture)
FAKE_CUDART_REFUSE(cudaStreamBeginCaptureToGraph)
FAKE_CUDART_REFUSE(cudaStreamEndCapture)
FAKE_CUDART_REFUSE(cudaStreamUpdateCaptureDependencies)

// Pools of memory
FAKE_CUDART_REFUSE(cudaDeviceGetDefaultMemPool)
FAKE_CUDART_REFUSE(cudaFreeAsync)
FAKE_CUDART_REFUSE(cudaMallocAsync)
FAKE_CUDART_REFUSE(cudaMemPoolGetAttribute)
FAKE_CUDART_REFUSE(cudaMemPoolSetAccess)
FAKE_CUDART_REFUSE(cudaMemPoolSetAttribute)
FAKE_CUDART_REFUSE(cudaMemPoolTrimTo)

// Code on the device, and its variables
FAKE_CUDART_REFUSE(cudaGetSymbolAddress)
FAKE_CUDART_REFUSE(cudaLibraryGetKernel)
FAKE_CUDART_REFUSE(cudaLibraryLoadData)
FAKE_CUDART_REFUSE(cudaLibraryUnload)
FAKE_CUDART_REFUSE(cudaMemcpyToSymbol)

// Replaced by cudaLaunchHostFunc
FAKE_CUDART_REFUSE(cudaStreamAddCallback)
