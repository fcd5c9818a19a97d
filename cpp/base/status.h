#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace freescale {

// What went wrong, for code that reacts; the message is for people and always names rank, op and
// values where there are any.
enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // the caller's input, found before anything was sent
  kMismatch,         // two ranks disagree about one operation
  kTimedOut,         // the deadline passed; the message contains " Timed out " as c10d expects
  kPeerLost,         // a peer died or closed its end
  kCancelled,        // a peer gave up this operation, or the group was closed or aborted here
  kSystem,           // a system call failed
};

// The error model of everything below backend/: no exceptions, and no result that can be dropped
// unseen (docs/adr/0001-error-model.md).
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status invalid_argument(std::string text) {
    return {StatusCode::kInvalidArgument, std::move(text)};
  }
  static Status mismatch(std::string text) { return {StatusCode::kMismatch, std::move(text)}; }
  static Status timed_out(std::string text) { return {StatusCode::kTimedOut, std::move(text)}; }
  static Status peer_lost(std::string text) { return {StatusCode::kPeerLost, std::move(text)}; }
  static Status cancelled(std::string text) { return {StatusCode::kCancelled, std::move(text)}; }
  static Status system(std::string text) { return {StatusCode::kSystem, std::move(text)}; }
  // `what` followed by the text of errno value `error`.
  static Status from_errno(std::string_view what, int error);

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : content_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(content_); }
  Status status() const { return ok() ? Status() : std::get<Status>(content_); }
  T& value() { return std::get<T>(content_); }
  const T& value() const { return std::get<T>(content_); }

 private:
  std::variant<T, Status> content_;
};

}  // namespace freescale
