#include "tests/fakes/cuda_driver/settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace fake_cuda {
namespace {

std::string text_of(const char* variable, const char* otherwise) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

int number_of(const char* variable, int otherwise) {
  const std::string text = text_of(variable, std::to_string(otherwise).c_str());
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || number < 0) reject(variable, text.c_str());
  return static_cast<int>(number);
}

EngineOrder engine_order() {
  constexpr const char* kVariable = "FAKE_CUDA_ENGINE_ORDER";
  const std::string text = text_of(kVariable, "readiness");
  if (text == "readiness") return EngineOrder::kReadiness;
  if (text == "head_of_line") return EngineOrder::kHeadOfLine;
  reject(kVariable, text.c_str());
}

Fabric fabric() {
  constexpr const char* kVariable = "FAKE_CUDA_FABRIC";
  const std::string text = text_of(kVariable, "no");
  if (text == "no") return Fabric::kNo;
  if (text == "claimed") return Fabric::kClaimed;
  if (text == "yes") return Fabric::kYes;
  reject(kVariable, text.c_str());
}

// "0-1,2-3": pairs of devices, in both directions.
std::set<std::pair<int, int>> peers_of(const std::string& text) {
  std::set<std::pair<int, int>> peers;
  std::istringstream pairs(text);
  for (std::string pair; std::getline(pairs, pair, ',');) {
    int a = 0, b = 0;
    if (std::sscanf(pair.c_str(), "%d-%d", &a, &b) != 2) reject("FAKE_CUDA_P2P", text.c_str());
    peers.insert({a, b});
    peers.insert({b, a});
  }
  return peers;
}

Settings read() {
  Settings settings;
  settings.version = number_of("FAKE_CUDA_VERSION", 13000);
  settings.devices = number_of("FAKE_CUDA_DEVICES", 2);
  settings.engines = number_of("FAKE_CUDA_ENGINES", 3);
  settings.queue_depth = number_of("FAKE_CUDA_QUEUE_DEPTH", 1024);
  settings.lazy_loading = text_of("CUDA_MODULE_LOADING", "LAZY") != "EAGER";
  settings.engine_order = engine_order();
  settings.fabric = fabric();
  const std::string peers = text_of("FAKE_CUDA_P2P", "all");
  settings.all_peers = peers == "all";
  if (peers != "all" && peers != "none") settings.peers = peers_of(peers);
  return settings;
}

}  // namespace

void reject(const char* variable, const char* value) {
  std::fprintf(stderr, "stand-in CUDA driver: no such %s: %s\n", variable, value);
  std::abort();
}

const Settings& Settings::get() {
  static const Settings* const settings = new Settings(read());
  return *settings;
}

bool Settings::can_access_peer(int device, int peer) const {
  return device != peer && (all_peers || peers.contains({device, peer}));
}

}  // namespace fake_cuda
