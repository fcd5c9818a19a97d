// Whether several processes can register the same memory of the host, and their streams see what
// each other's write.

#include <deque>
#include <string>

#include "tests/gpu/peer_process.h"
#include "tests/gpu/probe_device.h"
#include "tests/gpu/shared_words.h"

namespace freescale::probe {
namespace {

// The streams hand a number around: each waits for its own word, and writes the next one's.
void hand_around(const SharedWords& shared, size_t self, size_t processes, uint32_t rounds) {
  const ProbeDevice device;
  const cuda::PinnedWords words = shared.register_words(device.context());
  const cuda::DriverStream stream = device.stream();
  const cuda::PinnedWord mine = words[self];
  const cuda::PinnedWord next = words[(self + 1) % processes];
  if (self == 0) store(mine, 1);
  for (uint32_t round = 1; round <= rounds; ++round) {
    require(stream.wait({mine, round}));
    // The last one starts the next round.
    write(stream, next, self + 1 == processes ? round + 1 : round);
    // The driver's queue stays short.
    if (round % 100 == 0) require(stream.synchronize());
  }
  require(stream.synchronize());
}

void run(bool brief) {
  const size_t processes = brief ? 3 : 8;
  const uint32_t rounds = brief ? 20 : 1000;
  const SharedWords shared(processes);
  std::deque<PeerProcess> peers;
  for (size_t i = 1; i < processes; ++i) {
    peers.emplace_back([&, i](const Channel&) { hand_around(shared, i, processes, rounds); });
  }
  const Nanoseconds begin = now_ns();
  hand_around(shared, 0, processes, rounds);
  const double time = static_cast<double>(now_ns() - begin);
  for (PeerProcess& peer : peers) peer.join();

  fact("processes", static_cast<double>(processes), "");
  fact("a word written by one process' stream and seen by the next, with start-up",
       time / rounds / static_cast<double>(processes) / 1e3, "us");
  // A word that is not seen is a stream that waits for ever, until the time limit of the row.
  expect("every stream has seen the words of the process before it", true);
}

}  // namespace
}  // namespace freescale::probe

int main(int argc, char** argv) { freescale::probe::run(freescale::probe::is_short(argc, argv)); }
