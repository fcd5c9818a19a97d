#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "cpp/base/status.h"

namespace freescale {

// Names one mesh (so: one process's engine) for its whole life; random, never reused.
using EngineId = std::array<uint64_t, 2>;
using Secret = std::array<uint64_t, 2>;

// What a rank tells the others through the store: where it listens, and what proves that a
// connection comes from, or leads to, a member of the job.
struct Endpoint {
  EngineId engine{};
  Secret knock{};         // a connecting process must present it
  Secret welcome{};       // the accepting process answers with it
  uint64_t group_id = 0;  // proposed by this rank; rank 0's counts
  uint64_t host = 0;      // see host_identity()
  std::string socket;     // abstract Unix socket name

  std::string encode() const;
  // What a rank leaves in the place of its endpoint when it cannot take part after all.
  static std::string encode_refusal(std::string_view why);
  // kCancelled for a refusal, with its reason.
  static Result<Endpoint> decode(std::string_view text);
};

}  // namespace freescale
