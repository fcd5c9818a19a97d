#pragma once

#include <set>
#include <utility>

namespace fake_cuda {

enum class EngineOrder {
  kReadiness,   // a copy queues for its engine once its stream has got to it
  kHeadOfLine,  // a copy queues for its engine when it is submitted, and blocks those behind it
};

// Whether devices have fabric handles.
enum class Fabric {
  kNo,
  kClaimed,  // memory is made for them, which then cannot be exported
  kYes,
};

// What the process's environment says (README.md), read once.
struct Settings {
  int version;
  int devices;
  int engines;  // copy engines of a device
  int queue_depth;
  bool lazy_loading;
  EngineOrder engine_order;
  Fabric fabric;
  bool all_peers;
  std::set<std::pair<int, int>> peers;  // both orders, if not all

  static const Settings& get();
  bool can_access_peer(int device, int peer) const;
};

// Ends the process: a test has asked for something that does not exist.
[[noreturn]] void reject(const char* variable, const char* value);

}  // namespace fake_cuda
