#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "backend/priority.h"
#include "cpp/transport/cuda_ipc/submission_mode.h"

namespace freescale {

// All that the environment says: the FREESCALE_* variables, and those of torch that we honour.
struct Environment {
  // FREESCALE_SPIN_US: how long a waiting thread polls before it sleeps, where every rank has a
  // core of its own.
  std::optional<std::chrono::microseconds> spin;
  // FREESCALE_AGING_MS: aging of groups whose options give none.
  std::optional<std::chrono::milliseconds> aging;
  // FREESCALE_AGGREGATE_BYTES: between hosts of several ranks, equal parts of up to so many bytes
  // are gathered by each host before they go to another one; the same on all ranks. None by
  // default: docs/multihost.md has what was measured.
  size_t aggregate_bytes = 0;
  // FREESCALE_FIRST_SEQUENCE: number before the first collective of a group, the same on all ranks.
  // For tests beyond 32 bits.
  int64_t first_sequence = 0;
  // FREESCALE_CUDA_SUBMISSION: "auto", "ahead" or "proxy"; see docs/cuda.md.
  cuda::SubmissionMode cuda_submission = cuda::SubmissionMode::kAutomatic;
  // FREESCALE_EMULATED_LINK_RATE: bytes per second that a process sends to others at most; for
  // experiments.
  std::optional<uint64_t> emulated_link_rate;
  // TORCH_FR_BUFFER_SIZE: how many calls the flight recorder remembers; torch's own default.
  size_t flight_records = 2000;
  // TORCH_FR_DUMP_TEMP_FILE: where dumps after a failed call or an abort go, the rank is appended;
  // empty: nowhere. (torch's NCCL backend has a default in /tmp; we leave no file that nobody asked
  // for.)
  std::string flight_dump_prefix;
  // FREESCALE_HEARTBEAT_MS: how often processes of other hosts are told that this one lives; one
  // that was not heard for three times as long is lost.
  std::chrono::milliseconds heartbeat{5000};
  // FREESCALE_HOST: ranks with different ones count as on different hosts; for experiments.
  std::string host;
  // FREESCALE_IFNAME: interfaces to reach other hosts by, as in UCX_NET_DEVICES.
  std::string interfaces;
  // FREESCALE_POLICY: see PriorityPolicy::parse().
  PriorityPolicy policy;

  // Throws c10::ValueError for a value that does not parse, and for a FREESCALE_* name that does
  // not exist: a misspelt setting must not pass for a default.
  static Environment read();
};

}  // namespace freescale
