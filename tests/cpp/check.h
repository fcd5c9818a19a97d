#pragma once

#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

// A test framework of one page, so that a machine with a compiler alone can run the C++ tests.
//
//   TEST(ring_wraps) { CHECK_EQ(ring.size(), 4u); }            limit: kDefaultLimitSeconds
//   TEST_WITHIN(many_groups, 60) { CHECK_OK(group.connect()); }
//
// The first check that fails ends its test. Off the test's own thread, or in a forked child, it
// ends the process instead: the other ranks would wait for one that has given up. A test past its
// limit is killed by an alarm together with the executable. Arguments of the executable are
// substrings of the names of the tests to run.
namespace freescale::check {

inline constexpr unsigned kDefaultLimitSeconds = 20;

// Called before main, by the objects that TEST defines.
struct Registration {
  Registration(const char* name, unsigned limit_seconds, void (*body)());
};

// Runs the tests whose names contain one of the arguments; returns what main() returns.
int run_tests(int argc, char** argv);

[[noreturn]] void fail(const char* file, int line, std::string_view what);
[[noreturn]] void skip(std::string_view reason);

template <typename T>
concept Streamable = requires(std::ostream& out, const T& value) { out << value; };

template <typename T>
concept Range = requires(const T& value) {
  value.begin();
  value.end();
};

template <typename T>
std::string show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, bool>) {
    out << (value ? "true" : "false");
  } else if constexpr (std::is_same_v<T, std::nullptr_t>) {
    out << "nullptr";
  } else if constexpr (std::is_enum_v<T>) {
    out << +static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == 1) {
    out << +value;  // a byte, not a character
  } else if constexpr (Streamable<T>) {
    out << value;
  } else if constexpr (Range<T>) {
    out << '{';
    for (const auto& element : value) out << ' ' << show(element);
    out << " }";
  } else {
    out << '<' << sizeof(T) << " bytes>";
  }
  return out.str();
}

template <typename Left, typename Right, typename Compare>
void compare(const char* file, int line, const char* text, const Left& left, const Right& right,
             Compare holds) {
  if (holds(left, right)) return;
  fail(file, line, std::string(text) + ": left is " + show(left) + ", right is " + show(right));
}

// Takes a Status or a Result, both of cpp/base/status.h.
template <typename Outcome>
void expect_ok(const char* file, int line, const char* text, const Outcome& outcome) {
  if (outcome.ok()) return;
  if constexpr (requires { outcome.message(); }) {
    fail(file, line, std::string(text) + " failed: " + outcome.message());
  } else {
    fail(file, line, std::string(text) + " failed: " + outcome.status().message());
  }
}

}  // namespace freescale::check

#define TEST_WITHIN(name, limit_seconds)                                                  \
  static void test_##name();                                                              \
  static const ::freescale::check::Registration registration_##name(#name, limit_seconds, \
                                                                    test_##name);         \
  static void test_##name()
#define TEST(name) TEST_WITHIN(name, ::freescale::check::kDefaultLimitSeconds)

// Ends the test as skipped. Only for what this machine cannot do at all, never for an error.
#define SKIP(reason) ::freescale::check::skip(reason)

#define CHECK(condition) \
  ((condition) ? void() : ::freescale::check::fail(__FILE__, __LINE__, #condition " is false"))
#define CHECK_OK(outcome) ::freescale::check::expect_ok(__FILE__, __LINE__, #outcome, (outcome))

#define FREESCALE_COMPARE(left, op, right)                                                   \
  ::freescale::check::compare(__FILE__, __LINE__, #left " " #op " " #right, (left), (right), \
                              [](const auto& a, const auto& b) { return a op b; })
#define CHECK_EQ(left, right) FREESCALE_COMPARE(left, ==, right)
#define CHECK_NE(left, right) FREESCALE_COMPARE(left, !=, right)
#define CHECK_LT(left, right) FREESCALE_COMPARE(left, <, right)
#define CHECK_LE(left, right) FREESCALE_COMPARE(left, <=, right)
#define CHECK_GT(left, right) FREESCALE_COMPARE(left, >, right)
#define CHECK_GE(left, right) FREESCALE_COMPARE(left, >=, right)
