#pragma once

#include <cstdint>
#include <string_view>

namespace freescale {

// The ways in which a message can come from a process of this host, or stay on its rank.
enum class Path : uint8_t {
  kChunks,      // through the chunk lane: both sides copy, in parallel
  kPull,        // the receiver reads the sender's memory: one copy and a system call
  kInline,      // with its header
  kLocal,       // a copy within the rank
  kCopyEngine,  // between device memories, by copy engines
  kStaged,      // the same through pinned memory of the host
};
inline constexpr int kPaths = 6;

constexpr std::string_view path_name(Path path) {
  constexpr std::string_view kNames[kPaths] = {"chunks", "pull",        "inline",
                                               "local",  "copy_engine", "staged"};
  return kNames[static_cast<int>(path)];
}

// The paths that the messages of one operation took.
class PathSet {
 public:
  void add(Path path) { bits_ |= bit(path); }
  void add(PathSet others) { bits_ |= others.bits_; }
  bool has(Path path) const { return (bits_ & bit(path)) != 0; }

 private:
  static uint8_t bit(Path path) { return static_cast<uint8_t>(1u << static_cast<int>(path)); }
  uint8_t bits_ = 0;
};

}  // namespace freescale
