#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cpp/device/cuda_context.h"
#include "cpp/device/cuda_driver.h"
#include "tests/fakes/cuda_driver/control.h"

namespace freescale::testing {

// The ABIs that the stand-in driver is tried with.
inline constexpr int kDriverVersions[] = {12040, 12080, 13000};

// The size that mappings are multiples of.
inline constexpr size_t kMappingPage = 2 << 20;

// Variables of tests/fakes/cuda_driver/README.md.
using Environment = std::vector<std::pair<std::string, std::string>>;

// A process that has loaded the stand-in driver, with the first device's context current in this
// thread. What a CHECK finds ends the process.
class StandIn {
 public:
  // Once in a process, before any other use of the driver in it.
  explicit StandIn(const Environment& environment);

  const cuda::Driver& driver() const { return driver_; }
  const cuda::PrimaryContext& context() const { return context_; }

  // `bytes` of device memory, freed with the process.
  cuda::DevicePtr allocate(size_t bytes) const;
  // Memory in two halves: addresses, and what lies there, which lives as long as it is mapped.
  // `types`: bits.
  cuda::DevicePtr reserve(size_t bytes) const;
  void map_new(cuda::DevicePtr address, size_t bytes, cuda::HandleType types, int device = 0) const;
  cuda::Stream stream(int priority = 0) const;
  // An aligned word that the host and streams may use, zero at first.
  struct Word {
    uint32_t* host;
    cuda::DevicePtr device;
    void store(uint32_t value) const { __atomic_store_n(host, value, __ATOMIC_RELEASE); }
    uint32_t load() const { return __atomic_load_n(host, __ATOMIC_ACQUIRE); }
  };
  Word word() const;

  // Copies between pageable memory and the device, over when they return.
  void write(cuda::DevicePtr to, const std::string& bytes) const;
  std::string read(cuda::DevicePtr from, size_t bytes) const;

  void wait(cuda::Stream stream, Word word, uint32_t value) const;
  void signal(cuda::Stream stream, Word word, uint32_t value) const;

  // tests/fakes/cuda_driver/control.h
  cuda::Code launch_kernel(cuda::Stream stream, const char* name, const uint32_t* until) const;
  void inject(const char* fault, int nth, int argument = 0) const;
  void release_hung() const;
  void set_capturing(cuda::Stream stream, bool capturing) const;
  cuda::DevicePtr allocate_pooled(size_t bytes) const;
  FakeCudaState state() const;
  // Until it says so; the test's time limit ends what never does.
  void await(const std::function<bool(const FakeCudaState&)>& reached) const;

 private:
  void* library_;  // never closed
  const cuda::Driver& driver_;
  cuda::PrimaryContext context_;
  cuda::CurrentContext current_;
};

// Sets the variables of this process so that Driver::get() loads the stand-in.
void choose_stand_in(const Environment& environment);

// Runs `body` in a process of its own, which must come to its end: a driver is loaded once in a
// process and does not survive a fork, and each test wants another environment.
void on_stand_in(const Environment& environment, const std::function<void(StandIn&)>& body);
// With each of kDriverVersions.
void on_each_version(const Environment& environment, const std::function<void(StandIn&)>& body);

}  // namespace freescale::testing
