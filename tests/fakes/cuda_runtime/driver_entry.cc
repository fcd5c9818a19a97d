// Calls of the driver that torch asks the runtime for.

#include <array>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include "tests/fakes/cuda_runtime/runtime.h"

using namespace fake_cudart;  // NOLINT: entry points have no namespace

namespace {

// torch wants the address of every call that it could ever make. Those that the stand-in driver
// does not have lead here, and say their names when they are made.
constexpr size_t kMissing = 64;
std::array<std::string, kMissing>& missing() {
  static auto* const names = new std::array<std::string, kMissing>();
  return *names;
}

template <size_t index>
Code refuse() {
  std::fprintf(stderr, "the stand-in CUDA driver has no %s\n", missing()[index].c_str());
  return Code::kNotSupported;
}

template <size_t... index>
constexpr std::array<Code (*)(), kMissing> refusals(std::index_sequence<index...>) {
  return {&refuse<index>...};
}

// Null if there are more than kMissing.
void* refusal_of(const char* name) {
  static constexpr auto kRefusals = refusals(std::make_index_sequence<kMissing>());
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < kMissing; ++i) {
    if (missing()[i].empty()) missing()[i] = name;
    if (missing()[i] == name) return reinterpret_cast<void*>(kRefusals[i]);
  }
  return nullptr;
}

}  // namespace

FAKE_CUDART_EXPORT cudaError_t
cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned version,
                                 unsigned long long, cudaDriverEntryPointQueryResult* result) {
  *entry = nullptr;
  if (result != nullptr) *result = cudaDriverEntryPointSymbolNotFound;
  return call_without_context([&](const Below& below) {
    *entry = below.find(name, static_cast<int>(version));
    if (*entry == nullptr) *entry = refusal_of(name);
    if (*entry != nullptr && result != nullptr) *result = cudaDriverEntryPointSuccess;
    return Code::kSuccess;
  });
}
