#include "cpp/transport/ucx/ucp_settings.h"

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace freescale::ucx {
namespace {

struct Setting {
  const char* name;
  const char* value;
};

// Measured with UCX 1.22 over TCP.
constexpr Setting kSettings[] = {
    // With rendezvous and error handling together TCP falls back to emulation in pieces of 8 KiB,
    // four times slower (openucx/ucx#11929).
    {"RNDV_THRESH", "inf"},
    // Left to itself UCX over TCP sends what is longer than 31 KiB as copies of 8 KiB each
    // (UCX_PROTO_INFO=y shows it), not out of the memory where it is. With this, exchanges of 1 to
    // 64 MiB took 0.36, 0.67, 0.27 and 0.43 of the time, in one interleaved run on two busy cores.
    {"ZCOPY_THRESH", "16k"},
    // Chunks go over two interfaces where there are two, as UCX has it for rendezvous by default;
    // what then comes in another order is put right (OrderedInbox).
    {"MAX_EAGER_RAILS", "2"},
    // A link that is cut tells nobody; these have TCP look whether it is there.
    {"TCP_CONN_NB", "y"},
    {"TCP_KEEPIDLE", "1s"},
    {"TCP_KEEPINTVL", "1s"},
    {"TCP_KEEPCNT", "3"},
    {"TCP_SYN_CNT", "2"},
    {"KEEPALIVE_INTERVAL", "1s"},
    {"WARN_UNUSED_ENV_VARS", "n"},
};

// UCX's headers and ours, of one chunk.
constexpr size_t kHeaderRoom = 4 << 10;

// What the environment says goes first. An older UCX may not know a setting, and then does not need
// it.
void set_default(const UcpLibrary& ucp, ucp_config_t* config, const char* name, const char* value) {
  if (std::getenv(("UCX_" + std::string(name)).c_str()) != nullptr) return;
  ucp.ucp_config_modify(config, name, value);
}

// As UCX_NET_DEVICES may have it: of an interface, a device with or without its port, or a pattern.
bool may_exist(const std::string& name) {
  if (name == "all" || name.find_first_of("^*[") != std::string::npos) return true;
  if (if_nametoindex(name.c_str()) != 0) return true;
  std::error_code ignored;
  const std::string device = name.substr(0, name.find(':'));
  return std::filesystem::exists("/sys/class/infiniband/" + device, ignored);
}

std::string existing_interfaces() {
  std::string text;
  struct if_nameindex* const all = if_nameindex();
  for (const struct if_nameindex* one = all; one != nullptr && one->if_index != 0; ++one) {
    text += (text.empty() ? "" : ", ") + std::string(one->if_name);
  }
  if (all != nullptr) if_freenameindex(all);
  return text;
}

// UCX warns of names that it does not know, and then reaches nobody. Some may be those of other
// hosts, so that one setting fits all.
Status check_interfaces(const std::string& interfaces) {
  for (size_t begin = 0; begin <= interfaces.size();) {
    const size_t end = std::min(interfaces.find(',', begin), interfaces.size());
    if (may_exist(interfaces.substr(begin, end - begin))) return {};
    begin = end + 1;
  }
  return Status::invalid_argument("none of the interfaces that FREESCALE_IFNAME names is there: '" +
                                  interfaces + "'; there are " + existing_interfaces());
}

}  // namespace

Result<ucp_config_t*> read_settings(const UcpLibrary& ucp, const std::string& interfaces,
                                    std::chrono::milliseconds patience) {
  if (!interfaces.empty()) {
    if (Status status = check_interfaces(interfaces); !status.ok()) return status;
  }
  ucp_config_t* config = nullptr;
  if (const ucs_status_t read = ucp.ucp_config_read(nullptr, nullptr, &config); read != UCS_OK) {
    return ucp.error("reading UCX's settings", read);
  }
  for (const Setting& setting : kSettings) set_default(ucp, config, setting.name, setting.value);
  const std::string segment = std::to_string(kChunkBytes + kHeaderRoom);
  set_default(ucp, config, "TCP_RX_SEG_SIZE", segment.c_str());
  // Without it an error takes more than 44 s. TCP also counts the time for which a process that is
  // stopped takes nothing, and it sends again after pauses that double, so that a cut of one second
  // may keep it silent for three.
  const std::string user_timeout = std::to_string(patience.count()) + "ms";
  set_default(ucp, config, "TCP_USER_TIMEOUT", user_timeout.c_str());
  if (!interfaces.empty()) {
    const ucs_status_t set = ucp.ucp_config_modify(config, "NET_DEVICES", interfaces.c_str());
    if (set != UCS_OK) {
      ucp.ucp_config_release(config);
      return ucp.error(("choosing the interfaces " + interfaces).c_str(), set);
    }
  }
  return config;
}

}  // namespace freescale::ucx
