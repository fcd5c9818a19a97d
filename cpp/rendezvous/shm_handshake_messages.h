#pragma once

#include <cstddef>
#include <cstdint>

#include "cpp/rendezvous/shm_handshake.h"

namespace freescale {

// What the two sides of a handshake say to each other, as it lies in memory. For shm_handshake.cc
// and those who test it with messages of their own.

constexpr uint64_t kHandshakeMagic = 0x6672656573636131;  // protocol version 1
// Behind the link's memory: two halves, one for each side's probe.
constexpr size_t kProbeBytes = 4096;

struct Hello {
  uint64_t magic;
  EngineId engine;
  Secret knock;
  ShmGeometry geometry;
  uint64_t probe;          // stands in the memory too
  uint64_t pull_address;   // of a word in the sender...
  uint64_t pull_expected;  // ...that holds this
};

struct Welcome {
  uint64_t magic;
  Secret welcome;
  uint64_t probe_seen;
  uint64_t probe;
  uint64_t pull_address;
  uint64_t pull_expected;
};

struct Ready {
  uint64_t magic;
  uint64_t probe_seen;
};

}  // namespace freescale
