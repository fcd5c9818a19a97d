#include "backend/environment.h"

#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

namespace freescale {
namespace {

constexpr std::string_view kPrefix = "FREESCALE_";

template <typename Number>
Number parse_number(std::string_view name, std::string_view text, Number least) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && value >= least,
                    "freescale: ", name, "=\"", text,
                    "\" in the environment is not a whole number of ", least, " or more");
  return value;
}

struct Variable {
  std::string_view name;
  void (*read)(std::string_view name, std::string_view text, Environment& environment);
};

// Every variable there is, in the order in which messages list them.
constexpr Variable kVariables[] = {
    {"FREESCALE_AGING_MS",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.aging = std::chrono::milliseconds(parse_number<int32_t>(name, text, 1));
     }},
    {"FREESCALE_FIRST_SEQUENCE",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.first_sequence = parse_number<int64_t>(name, text, 0);
     }},
    {"FREESCALE_POLICY",
     [](std::string_view, std::string_view text, Environment& environment) {
       environment.policy = PriorityPolicy::parse(text);
     }},
    {"FREESCALE_SPIN_US",
     [](std::string_view name, std::string_view text, Environment& environment) {
       environment.spin = std::chrono::microseconds(parse_number<int32_t>(name, text, 0));
     }},
};

const Variable& find_variable(std::string_view name) {
  for (const Variable& variable : kVariables) {
    if (variable.name == name) return variable;
  }
  std::string known;
  for (const Variable& variable : kVariables) {
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
    if (text.substr(0, kPrefix.size()) != kPrefix) continue;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    find_variable(name).read(name, text.substr(equals + 1), environment);
  }
  return environment;
}

}  // namespace freescale
