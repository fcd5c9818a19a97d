#include "backend/device_reducer.h"

#include <mutex>
#include <utility>

namespace freescale {
namespace {

std::mutex factory_mutex;

// Never destroyed: it may be a Python function, and the interpreter ends before.
DeviceReducerFactory& the_factory() {
  static auto* const factory = new DeviceReducerFactory();
  return *factory;
}

}  // namespace

void set_device_reducer_factory(DeviceReducerFactory factory) {
  const std::lock_guard lock(factory_mutex);
  the_factory() = std::move(factory);
}

c10::intrusive_ptr<c10d::Backend> make_device_reducer(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    const c10::intrusive_ptr<BackendOptions>& options) {
  {
    const std::lock_guard lock(factory_mutex);
    if (the_factory() == nullptr) return nullptr;
  }
  // Not under the lock: it takes the interpreter's.
  return the_factory()(store, rank, size, options);
}

}  // namespace freescale
