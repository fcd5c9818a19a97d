#include "tests/fakes/cuda_driver/faults.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "cpp/device/cuda_types.h"
#include "tests/fakes/cuda_driver/settings.h"

namespace fake_cuda {
namespace {

using freescale::cuda::Code;

struct Kind {
  const char* name;
  int argument;  // if none is given
};
// In the order of Fault.
constexpr std::array<Kind, 8> kKinds = {{
    {"copy_refused", static_cast<int>(Code::kUnknown)},
    {"copy_fails", static_cast<int>(Code::kIllegalAddress)},
    {"copy_garbled", 0},
    {"copy_slow", 10},
    {"wait_hung", 0},
    {"write_lost", 0},
    {"ipc_denied", static_cast<int>(Code::kOperatingSystem)},  // what a driver says for EPERM
    {"fabric_denied", static_cast<int>(Code::kNotPermitted)},  // and without a channel of IMEX
}};

struct Planned {
  size_t kind;
  int left;  // occurrences until it happens
  int argument;
};

class Plan {
 public:
  static Plan& get() {
    static Plan* const plan = new Plan();
    return *plan;
  }

  void add(std::string_view name, int nth, std::optional<int> argument) {
    for (size_t kind = 0; kind < kKinds.size(); ++kind) {
      if (name != kKinds[kind].name) continue;
      const std::lock_guard lock(mutex_);
      planned_.push_back({kind, nth, argument.value_or(kKinds[kind].argument)});
      return;
    }
    reject("fault", std::string(name).c_str());
  }

  std::optional<int> occurs(Fault fault) {
    const std::lock_guard lock(mutex_);
    std::optional<int> argument;
    for (Planned& planned : planned_) {
      if (planned.kind == static_cast<size_t>(fault) && --planned.left == 0) {
        argument = planned.argument;
      }
    }
    return argument;
  }

 private:
  // FAKE_CUDA_FAULTS=kind:nth[:argument],...
  Plan() {
    const char* text = std::getenv("FAKE_CUDA_FAULTS");
    std::istringstream all(text != nullptr ? text : "");
    for (std::string one; std::getline(all, one, ',');) {
      int nth = 0, argument = 0;
      const size_t name_end = one.find(':');
      const int fields = name_end == std::string::npos
                             ? 0
                             : std::sscanf(one.c_str() + name_end, ":%d:%d", &nth, &argument);
      if (fields < 1 || nth < 1) reject("FAKE_CUDA_FAULTS", one.c_str());
      add(one.substr(0, name_end), nth, fields == 2 ? std::optional(argument) : std::nullopt);
    }
  }

  std::mutex mutex_;
  std::vector<Planned> planned_;
};

}  // namespace

std::optional<int> occurs(Fault fault) { return Plan::get().occurs(fault); }

void inject(std::string_view kind, int nth, int argument) { Plan::get().add(kind, nth, argument); }

}  // namespace fake_cuda
