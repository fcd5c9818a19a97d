#include "tests/gpu/finding.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace freescale::probe {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    // The few control characters that an error message may have are of no interest.
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + '"';
}

// In one piece, as several processes write to the same pipe.
void print(const std::string& line) {
  const std::string whole = line + "\n";
  if (write(STDOUT_FILENO, whole.data(), whole.size()) != static_cast<ssize_t>(whole.size())) {
    std::_Exit(EXIT_FAILURE);
  }
}

}  // namespace

void fact(std::string_view name, double value, std::string_view unit) {
  if (!std::isfinite(value)) give_up("no number for " + std::string(name));
  char number[32];
  std::snprintf(number, sizeof(number), "%.6g", value);
  print("{\"fact\": " + quoted(name) + ", \"value\": " + number + ", \"unit\": " + quoted(unit) +
        "}");
}

void fact(std::string_view name, std::string_view value) {
  print("{\"fact\": " + quoted(name) + ", \"value\": " + quoted(value) + "}");
}

void expect(std::string_view rule, bool holds) {
  print("{\"expect\": " + quoted(rule) + ", \"holds\": " + (holds ? "true" : "false") + "}");
}

void unavailable(std::string_view why) {
  print("{\"unavailable\": " + quoted(why) + "}");
  std::_Exit(EXIT_SUCCESS);
}

void give_up(std::string_view why) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(why.size()), why.data());
  std::_Exit(EXIT_FAILURE);
}

}  // namespace freescale::probe
