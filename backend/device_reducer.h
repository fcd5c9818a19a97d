#pragma once

#include <functional>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "backend/options.h"

namespace freescale {

// Makes the backend that combines the CUDA tensors of one group with kernels of its own, or null
// where the group's exchanges are to do it. Throws where the options ask for what there is not.
using DeviceReducerFactory = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<BackendOptions>& options)>;

// Of the process, and set before its first group is made: how to make NCCL's backend is known to
// Python alone.
void set_device_reducer_factory(DeviceReducerFactory factory);

// Null, too, where there is no factory.
c10::intrusive_ptr<c10d::Backend> make_device_reducer(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<BackendOptions>& options);

}  // namespace freescale
