#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#include "cpp/base/priority.h"

namespace freescale {

// Settings of one group: what Python calls freescale_pg.Options. Not named so here, because inside
// a c10d::Backend the name Options means torch's.
struct BackendOptions final : c10d::Backend::Options {
  explicit BackendOptions(Priority priority = Priority::kNormal,
                          std::chrono::milliseconds timeout = kBackendDefaultTimeout,
                          std::optional<std::chrono::microseconds> aging = std::nullopt,
                          std::optional<std::string> reductions = std::nullopt, bool eager = true)
      : c10d::Backend::Options("freescale", timeout),
        priority(priority),
        aging(aging),
        reductions(std::move(reductions)),
        eager(eager) {}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
    return c10::make_intrusive<BackendOptions>(*this);
  }
#endif

  // Of the group's collectives, where the calling thread sets none.
  Priority priority;
  // Of the process's engine; unset: whatever it has.
  std::optional<std::chrono::microseconds> aging;
  // Who combines CUDA tensors, "nccl" or "exchange"; unset: NCCL where there is one.
  std::optional<std::string> reductions;
  // Whether the members are connected when the group is made, or by their first calls.
  bool eager;
};

}  // namespace freescale
