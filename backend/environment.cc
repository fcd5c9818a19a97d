#include "backend/environment.h"

#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

namespace freescale {
namespace {

constexpr std::string_view kPrefix = "FREESCALE_";
// Of an emulated link, in bytes per second: beyond what any memory does.
constexpr uint64_t kHighestRate = 1'000'000'000'000;

template <typename Number>
Number parse_number(std::string_view name, std::string_view text, Number least) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && value >= least,
                    "freescale: ", name, "=\"", text,
                    "\" in the environment is not a whole number of ", least, " or more");
  return value;
}

struct Unit {
  std::string_view name;
  uint64_t bytes;
};
constexpr Unit kUnits[] = {
    {"", 1}, {"B", 1}, {"kB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}};

// A rate in bytes per second: a whole number and a unit, as in "250MB".
uint64_t parse_rate(std::string_view name, std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view rest(end, text.data() + text.size() - end);
  for (const Unit& unit : kUnits) {
    if (error != std::errc() || rest != unit.name) continue;
    if (value >= 1 && value <= kHighestRate / unit.bytes) return value * unit.bytes;
  }
  TORCH_CHECK_VALUE(false, "freescale: ", name, "=\"", text,
                    "\" in the environment is not a rate: bytes per second from 1 to ",
                    kHighestRate, ", with or without kB, MB or GB, as in 250MB");
}

cuda::SubmissionMode parse_submission(std::string_view name, std::string_view text) {
  using cuda::SubmissionMode;
  if (text == "auto") return SubmissionMode::kAutomatic;
  if (text == "ahead") return SubmissionMode::kAhead;
  if (text == "proxy") return SubmissionMode::kProxy;
  TORCH_CHECK_VALUE(false, "freescale: ", name, "=\"", text,
                    "\" in the environment is none of auto, ahead and proxy");
}

struct Variable {
  std::string_view name;
  void (*read)(std::string_view name, std::string_view text, Environment& environment);
};

// Every variable there is, in the order in which messages list them.
constexpr Variable kVariables[] = {
    {"FREESCALE_AGGREGATE_BYTES",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.aggregate_bytes = static_cast<size_t>(parse_number<int64_t>(name, text, 0));
     }},
    {"FREESCALE_AGING_MS",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.aging = std::chrono::milliseconds(parse_number<int32_t>(name, text, 1));
     }},
    // Read by cuda::Driver, which knows nothing of this list.
    {"FREESCALE_CUDA_DRIVER", [](std::string_view, std::string_view, Environment&) {}},
    {"FREESCALE_CUDA_SUBMISSION",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.cuda_submission = parse_submission(name, text);
     }},
    {"FREESCALE_EMULATED_LINK_RATE",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.emulated_link_rate = parse_rate(name, text);
     }},
    {"FREESCALE_FIRST_SEQUENCE",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.first_sequence = parse_number<int64_t>(name, text, 0);
     }},
    {"FREESCALE_HEARTBEAT_MS",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.heartbeat = std::chrono::milliseconds(parse_number<int32_t>(name, text, 1));
     }},
    {"FREESCALE_HOST", [](std::string_view, std::string_view text,
                          Environment& environment) { environment.host = text; }},
    {"FREESCALE_IFNAME", [](std::string_view, std::string_view text,
                            Environment& environment) { environment.interfaces = text; }},
    {"FREESCALE_POLICY",
     [](std::string_view, std::string_view text, Environment& environment) {
       environment.policy = PriorityPolicy::parse(text);
     }},
    {"FREESCALE_SPIN_US",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.spin = std::chrono::microseconds(parse_number<int32_t>(name, text, 0));
     }},
    // Read by ucx::UcpLibrary, which knows nothing of this list.
    {"FREESCALE_UCX_LIBRARY", [](std::string_view, std::string_view, Environment&) {}},
    {"TORCH_FR_BUFFER_SIZE",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.flight_records = static_cast<size_t>(parse_number<int32_t>(name, text, 0));
     }},
    {"TORCH_FR_DUMP_TEMP_FILE",
     [](std::string_view, std::string_view text, Environment& environment) {
       environment.flight_dump_prefix = text;
     }},
};

const Variable* find_variable(std::string_view name) {
  for (const Variable& variable : kVariables) {
    if (variable.name == name) return &variable;
  }
  return nullptr;
}

// Of the names that are ours: a misspelt one must not pass for a default.
void refuse_unknown(std::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) return;
  std::string known;
  for (const Variable& variable : kVariables) {
    if (variable.name.substr(0, kPrefix.size()) != kPrefix) continue;
    if (!known.empty()) known += ", ";
    known += variable.name;
  }
  TORCH_CHECK_VALUE(false, "freescale: ", name, " in the environment is not known; there are ",
                    known);
}

}  // namespace

Environment Environment::read() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (const Variable* variable = find_variable(name)) {
      variable->read(name, text.substr(equals + 1), environment);
    } else {
      refuse_unknown(name);
    }
  }
  return environment;
}

}  // namespace freescale
