#include "backend/flight_dump.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "backend/errors.h"
#include "backend/process_engine.h"

namespace freescale {
namespace {

// Raised when a field changes its meaning or goes.
constexpr int kFormat = 1;

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// A number of 64 bits as text: JSON's readers may take numbers for doubles.
std::string hex(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof(text), "\"%016llx\"", static_cast<unsigned long long>(number));
  return text;
}

std::string list(const std::vector<std::string>& items, char open, char close) {
  std::string text(1, open);
  for (size_t i = 0; i < items.size(); ++i) text += (i > 0 ? "," : "") + items[i];
  return text + close;
}

std::string field(std::string_view name, const std::string& value) {
  return json_text(name) + ":" + value;
}

template <typename Number>
std::string field(std::string_view name, Number value) {
  return field(name, std::to_string(value));
}

std::string state_name(FlightRecord::State state) {
  switch (state) {
    case FlightRecord::State::kInFlight:
      return "in_flight";
    case FlightRecord::State::kCompleted:
      return "completed";
    case FlightRecord::State::kFailed:
      break;
  }
  return "failed";
}

std::string json_of(PathSet paths) {
  std::vector<std::string> names;
  for (int i = 0; i < kPaths; ++i) {
    const auto path = static_cast<Path>(i);
    if (paths.has(path)) names.push_back(json_text(path_name(path)));
  }
  return list(names, '[', ']');
}

std::string json_of(const FlightGroup& group) {
  std::vector<std::string> ranks;
  for (const uint64_t rank : group.global_ranks) ranks.push_back(std::to_string(rank));
  return list({field("name", json_text(group.name)), field("rank", group.rank),
               field("size", group.size), field("global_ranks", list(ranks, '[', ']'))},
              '{', '}');
}

// What operations in flight wait for, by group and number of the collective.
using Waits = std::map<std::pair<uint64_t, uint64_t>, std::string>;

Waits find_waits() {
  Waits waits;
  const std::shared_ptr<ProcessEngine> process = ProcessEngine::current();
  if (process == nullptr) return waits;
  for (OpenOperation& open : process->engine().open_operations()) {
    if (open.sequence == 0 || open.missing.empty()) continue;
    waits.try_emplace({open.group, open.sequence}, std::move(open.missing));
  }
  return waits;
}

std::string json_of(const FlightRecord& record, const Waits& waits) {
  const Signature signature{record.op, record.dtype, 0};
  std::vector<std::string> fields = {
      field("number", record.number),
      field("group", hex(record.group->id)),
      field("op", json_text(op_name(record.op))),
      field("dtype", json_text(signature.dtype_name())),
      field("bytes_in", record.bytes_in),
      field("bytes_out", record.bytes_out),
      field("priority", static_cast<int>(record.priority)),
      field("state", json_text(state_name(record.state))),
      field("paths", json_of(record.paths)),
      field("begin_ns", record.begin),
      field("end_ns", record.end),
  };
  if (record.sequence != 0) {
    fields.push_back(field("sequence", record.sequence));
  } else {
    fields.push_back(field("peer", record.peer));
    fields.push_back(field("tag", record.tag));
  }
  if (!record.failure.empty()) fields.push_back(field("failure", json_text(record.failure)));
  const auto wait = waits.find({record.group->id, record.sequence});
  if (record.state == FlightRecord::State::kInFlight && wait != waits.end()) {
    fields.push_back(field("waits_for", json_text(wait->second)));
  }
  return list(fields, '{', '}');
}

// In bytes per second. So that nobody takes numbers under it for those of the machine.
std::string emulated_link_rate() {
  const std::shared_ptr<ProcessEngine> process = ProcessEngine::current();
  if (process == nullptr || !process->emulated_link_rate()) return "null";
  return std::to_string(*process->emulated_link_rate());
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

FlightRecorder& flight_recorder() {
  // Never destroyed: works may complete after the destructors of static objects have run.
  static auto* const recorder = new FlightRecorder(Environment::read().flight_records);
  return *recorder;
}

std::string flight_dump() {
  const Waits waits = find_waits();
  std::map<uint64_t, std::shared_ptr<const FlightGroup>> groups;
  std::vector<std::string> records;
  for (const FlightRecord& record : flight_recorder().records()) {
    groups.emplace(record.group->id, record.group);
    records.push_back(json_of(record, waits));
  }
  std::vector<std::string> group_fields;
  for (const auto& [id, group] : groups) group_fields.push_back(hex(id) + ":" + json_of(*group));
  return list(
      {field("format", kFormat), field("host", json_text(host_name())), field("pid", getpid()),
       field("time_ns", wall_clock_ns()), field("now_ns", now_ns()),
       field("emulated_link_rate", emulated_link_rate()),
       field("groups", list(group_fields, '{', '}')), field("records", list(records, '[', ']'))},
      '{', '}');
}

void write_flight_dump(const Environment& environment, const FlightGroup& group) noexcept {
  if (environment.flight_dump_prefix.empty()) return;
  const std::string name = environment.flight_dump_prefix + std::to_string(group.rank_in_job());
  try {
    std::ofstream file(name, std::ios::trunc);
    file << flight_dump() << '\n';
    file.close();
    if (!file) TORCH_WARN("freescale: cannot write the dump of recent calls to ", name);
  } catch (const std::exception& error) {
    TORCH_WARN("freescale: the dump of recent calls failed: ", exception_text(error));
  }
}

}  // namespace freescale
