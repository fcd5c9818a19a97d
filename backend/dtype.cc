#include "backend/dtype.h"

#include <array>
#include <string>

namespace freescale {
namespace {

constexpr size_t kDtypes = static_cast<size_t>(c10::ScalarType::NumOptions);

std::array<std::string, kDtypes> read_names() {
  std::array<std::string, kDtypes> names;
  for (size_t i = 0; i < kDtypes; ++i) {
    const auto type = static_cast<c10::ScalarType>(i);
    // Undefined and the numbers torch has retired have no name in Python.
    try {
      names[i] = std::string(c10::getDtypeNames(type).first);
    } catch (const c10::Error&) {
      names[i] = c10::toString(type);
    }
  }
  return names;
}

}  // namespace

std::string_view dtype_name(c10::ScalarType type) {
  static const std::array<std::string, kDtypes> names = read_names();
  const auto index = static_cast<size_t>(type);
  return index < kDtypes ? std::string_view(names[index]) : "undefined";
}

}  // namespace freescale
