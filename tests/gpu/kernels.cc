#include "tests/gpu/kernels.h"

#include <string>
#include <thread>

#include "tests/fakes/cuda_driver/control.h"
#include "tests/gpu/driver_entry.h"
#include "tests/gpu/kernel_code.h"
#include "tests/gpu/probe_device.h"

namespace freescale::probe {
namespace {

using cuda::Code;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

constexpr auto kMultiprocessorCount = static_cast<cuda::DeviceAttribute>(16);
constexpr auto kThreadsPerMultiprocessor = static_cast<cuda::DeviceAttribute>(39);

using LoadModule = Code(Module* module, const void* image);
using FindFunction = Code(Function* function, Module module, const char* name);
using Launch = Code(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                    cuda::Stream stream, void** arguments, void** extra);

class DeviceKernels : public Kernels {
 public:
  explicit DeviceKernels(const ProbeDevice& device) : context_(device.context()) {
    const Module module = load_code();
    fill_ = find(module, "fs_fill");
    empty_ = find(module, "fs_empty");
    started_ = device.word();
    warm_up(device);
  }

  void fill(cuda::Stream stream, cuda::PinnedWord until) override {
    const unsigned blocks =
        attribute(kMultiprocessorCount) * (attribute(kThreadsPerMultiprocessor) / kFillThreads);
    store(started_, 0);
    enqueue_fill(stream, until, blocks);
    if (!await(started_, blocks, Deadline::after(std::chrono::seconds(5)))) {
      give_up("a kernel that should fill the device runs only " + std::to_string(load(started_)) +
              " of its " + std::to_string(blocks) + " blocks: somebody else uses the device");
    }
  }

  void launch(cuda::Stream stream) override { enqueue(empty_, 1, 1, stream, nullptr); }

  void launch_new(cuda::Stream stream) override {
    enqueue(find(load_code(), "fs_empty"), 1, 1, stream, nullptr);
  }

  bool exclude_each_other() const override { return true; }

 private:
  // Both kernels once, so that nothing is loaded when a probe uses them.
  void warm_up(const ProbeDevice& device) {
    const cuda::Stream stream = device.plain_stream();
    const cuda::PinnedWord past = device.word();
    store(past, 1);
    enqueue_fill(stream, past, 1);
    launch(stream);
    require(device.driver().stream_synchronize(stream));
  }

  void enqueue_fill(cuda::Stream stream, cuda::PinnedWord until, unsigned blocks) {
    uint64_t limit_ns = kLongestSeconds * 1'000'000'000;
    void* arguments[] = {&until.device, &started_.device, &limit_ns};
    enqueue(fill_, blocks, kFillThreads, stream, arguments);
  }

  Module load_code() const {
    Module module = nullptr;
    check("cuModuleLoadData", load_module_(&module, kKernelCode));
    return module;
  }

  Function find(Module module, const char* name) const {
    Function function = nullptr;
    check("cuModuleGetFunction", find_function_(&function, module, name));
    return function;
  }

  void enqueue(Function function, unsigned blocks, unsigned threads, cuda::Stream stream,
               void** arguments) const {
    check("cuLaunchKernel",
          launch_(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
  }

  unsigned attribute(cuda::DeviceAttribute which) const {
    int value = 0;
    require(context_.driver().device_get_attribute(&value, which, context_.device()));
    return static_cast<unsigned>(value);
  }

  const cuda::PrimaryContext& context_;
  LoadModule* const load_module_ = driver_entry<LoadModule>("cuModuleLoadData");
  FindFunction* const find_function_ = driver_entry<FindFunction>("cuModuleGetFunction");
  Launch* const launch_ = driver_entry<Launch>("cuLaunchKernel");
  Function fill_ = nullptr;
  Function empty_ = nullptr;
  cuda::PinnedWord started_;
};

class StandInKernels : public Kernels {
 public:
  StandInKernels() {
    cuda::Stream stream = cuda::kDefaultStream;
    check("fake_cuda_launch_kernel", launch_(stream, "fs_fill", nullptr));
    check("fake_cuda_launch_kernel", launch_(stream, "fs_empty", nullptr));
  }

  void fill(cuda::Stream stream, cuda::PinnedWord until) override {
    check("fake_cuda_launch_kernel",
          launch_(stream, "fs_fill", reinterpret_cast<const uint32_t*>(until.host)));
    while (state_().running_kernels == 0) std::this_thread::yield();
  }

  void launch(cuda::Stream stream) override {
    check("fake_cuda_launch_kernel", launch_(stream, "fs_empty", nullptr));
  }

  void launch_new(cuda::Stream stream) override {
    const std::string name = "new " + std::to_string(++launched_);
    check("fake_cuda_launch_kernel", launch_(stream, name.c_str(), nullptr));
  }

  bool exclude_each_other() const override { return false; }

 private:
  decltype(fake_cuda_launch_kernel)* const launch_ =
      driver_entry<decltype(fake_cuda_launch_kernel)>("fake_cuda_launch_kernel");
  decltype(fake_cuda_state)* const state_ =
      driver_entry<decltype(fake_cuda_state)>("fake_cuda_state");
  int launched_ = 0;
};

}  // namespace

std::unique_ptr<Kernels> Kernels::create(const ProbeDevice& device) {
  if (is_stand_in()) return std::make_unique<StandInKernels>();
  return std::make_unique<DeviceKernels>(device);
}

}  // namespace freescale::probe
