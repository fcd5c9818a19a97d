#include "tests/cpp/stand_in_driver.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"

namespace freescale::testing {
namespace {

constexpr const char* kPath = FREESCALE_FAKE_CUDA_DRIVER;

const cuda::Driver& loaded_driver() {
  const Result<const cuda::Driver*> driver = cuda::Driver::get();
  CHECK_OK(driver);
  return *driver.value();
}

cuda::PrimaryContext first_context(const cuda::Driver& driver) {
  Result<cuda::PrimaryContext> context = cuda::PrimaryContext::retain(driver, 0);
  CHECK_OK(context);
  return std::move(context.value());
}

template <typename Function>
Function* control(void* library, const char* name) {
  void* entry = dlsym(library, name);
  CHECK(entry != nullptr);
  return reinterpret_cast<Function*>(entry);
}

}  // namespace

void choose_stand_in(const Environment& environment) {
  setenv("FREESCALE_CUDA_DRIVER", kPath, 1);
  for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
}

StandIn::StandIn(const Environment& environment)
    : library_((choose_stand_in(environment), dlopen(kPath, RTLD_NOW | RTLD_LOCAL))),
      driver_(loaded_driver()),
      context_(first_context(driver_)),
      current_(context_) {
  CHECK_OK(current_.status());
}

cuda::DevicePtr StandIn::allocate(size_t bytes) const {
  cuda::DevicePtr address = 0;
  CHECK_OK(driver_.mem_alloc(&address, bytes));
  return address;
}

cuda::DevicePtr StandIn::reserve(size_t bytes) const {
  cuda::DevicePtr address = 0;
  CHECK_OK(driver_.mem_address_reserve(&address, bytes, 0, 0, 0));
  return address;
}

void StandIn::map_new(cuda::DevicePtr address, size_t bytes, cuda::HandleType types,
                      int device) const {
  cuda::AllocationProperties properties;
  properties.requested_handle_types = types;
  properties.location.id = device;
  cuda::AllocationHandle handle = 0;
  CHECK_OK(driver_.mem_create(&handle, bytes, &properties, 0));
  CHECK_OK(driver_.mem_map(address, bytes, 0, handle, 0));
  cuda::AccessDescription access;
  access.location.id = device;
  CHECK_OK(driver_.mem_set_access(address, bytes, &access, 1));
  CHECK_OK(driver_.mem_release(handle));
}

cuda::Stream StandIn::stream(int priority) const {
  cuda::Stream stream = nullptr;
  CHECK_OK(driver_.stream_create_with_priority(&stream, cuda::kStreamNonBlocking, priority));
  return stream;
}

StandIn::Word StandIn::word() const {
  void* host = nullptr;
  CHECK_OK(
      driver_.mem_host_alloc(&host, sizeof(uint32_t), cuda::kHostPortable | cuda::kHostDeviceMap));
  Word word{static_cast<uint32_t*>(host), 0};
  CHECK_OK(driver_.mem_host_get_device_pointer(&word.device, host, 0));
  return word;
}

void StandIn::write(cuda::DevicePtr to, const std::string& bytes) const {
  CHECK_OK(driver_.memcpy_async(to, reinterpret_cast<cuda::DevicePtr>(bytes.data()), bytes.size(),
                                cuda::kDefaultStream));
}

std::string StandIn::read(cuda::DevicePtr from, size_t bytes) const {
  std::string content(bytes, '?');
  CHECK_OK(driver_.memcpy_async(reinterpret_cast<cuda::DevicePtr>(content.data()), from, bytes,
                                cuda::kDefaultStream));
  return content;
}

void StandIn::wait(cuda::Stream stream, Word word, uint32_t value) const {
  CHECK_OK(driver_.stream_wait_value32(stream, word.device, value, cuda::kWaitGreaterOrEqual));
}

void StandIn::signal(cuda::Stream stream, Word word, uint32_t value) const {
  CHECK_OK(driver_.stream_write_value32(stream, word.device, value, cuda::kWriteDefault));
}

cuda::Code StandIn::launch_kernel(cuda::Stream stream, const char* name,
                                  const uint32_t* until) const {
  return control<decltype(fake_cuda_launch_kernel)>(library_, "fake_cuda_launch_kernel")(
      stream, name, until);
}

void StandIn::inject(const char* fault, int nth, int argument) const {
  control<decltype(fake_cuda_inject)>(library_, "fake_cuda_inject")(fault, nth, argument);
}

void StandIn::release_hung() const {
  control<decltype(fake_cuda_release_hung)>(library_, "fake_cuda_release_hung")();
}

void StandIn::set_capturing(cuda::Stream stream, bool capturing) const {
  control<decltype(fake_cuda_set_capturing)>(library_, "fake_cuda_set_capturing")(stream,
                                                                                  capturing);
}

cuda::DevicePtr StandIn::allocate_pooled(size_t bytes) const {
  cuda::DevicePtr address = 0;
  const auto allocate =
      control<decltype(fake_cuda_allocate_pooled)>(library_, "fake_cuda_allocate_pooled");
  CHECK(allocate(&address, bytes) == cuda::Code::kSuccess);
  return address;
}

FakeCudaState StandIn::state() const {
  return control<decltype(fake_cuda_state)>(library_, "fake_cuda_state")();
}

void StandIn::await(const std::function<bool(const FakeCudaState&)>& reached) const {
  while (!reached(state())) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void on_stand_in(const Environment& environment, const std::function<void(StandIn&)>& body) {
  ChildProcess child([&] {
    StandIn stand_in(environment);
    body(stand_in);
  });
  try {
    child.expect_success();
  } catch (...) {
    for (const auto& [name, value] : environment) {
      std::printf("  with %s=%s\n", name.c_str(), value.c_str());
    }
    throw;
  }
}

void on_each_version(const Environment& environment, const std::function<void(StandIn&)>& body) {
  for (int version : kDriverVersions) {
    Environment with_version = environment;
    with_version.emplace_back("FAKE_CUDA_VERSION", std::to_string(version));
    on_stand_in(with_version, body);
  }
}

}  // namespace freescale::testing
