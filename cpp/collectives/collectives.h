#pragma once

// Plan builders: each turns the arguments of one collective on one rank into the messages that it
// sends and receives. They only compute addresses; no I/O, no state. Sizes are bytes; a vector with
// one entry per rank is indexed by rank. `self` is the own rank.

#include <cstddef>
#include <span>
#include <vector>

#include "cpp/collectives/host_map.h"
#include "cpp/scheduler/plan.h"

namespace freescale {

// The segments that go to or come from one rank.
using Pieces = std::vector<Segment>;

// `input[r]` goes to rank r, `output[r]` comes from rank r. Covers all_to_all (list and single),
// reduce-scatter's exchange and barrier.
Plan plan_all_to_all(int self, std::vector<Pieces> input, std::vector<Pieces> output);

// The same in two exchanges, for pieces that are all `bytes` long: what a host has for a rank of
// another one is first gathered at the rank that is its lane (HostMap::entry) and goes on from
// there as one message. So a pair of hosts exchanges one message for each rank instead of one for
// each pair of ranks, which pays where pieces are small. The first exchange includes what stays
// within the host. `passing` has room for pass_through_bytes().
std::vector<Plan> plan_all_to_all_by_host(int self, const HostMap& hosts,
                                          const std::vector<Pieces>& input,
                                          const std::vector<Pieces>& output, size_t bytes,
                                          std::byte* passing);

// Of pieces of other ranks of the host that pass through this one.
size_t pass_through_bytes(int self, const HostMap& hosts, size_t bytes);

// `input` goes to every rank, `output[r]` comes from rank r.
Plan plan_all_gather(int self, const Pieces& input, std::vector<Pieces> output);

// The same in two exchanges, in which each piece crosses the network once for each other host: to
// one rank there, which then gives it to the rest of its host. The first exchange includes what
// stays within the host.
std::vector<Plan> plan_all_gather_by_host(int self, const HostMap& hosts, const Pieces& input,
                                          const std::vector<Pieces>& output);

// In the three that have a root, every other rank exchanges a message with it, an empty one where
// no data goes: so nobody is done before the root and it have compared how they called.

// `buffer` goes from `root` to every other rank.
Plan plan_broadcast(int self, int size, int root, const Pieces& buffer);

// `input[r]` goes from `root` to rank r (empty elsewhere), into `output` there.
Plan plan_scatter(int self, int root, std::vector<Pieces> input, const Pieces& output);

// `input` goes from every rank to `root`, where it lands in `output[r]` (empty elsewhere).
Plan plan_gather(int self, int root, const Pieces& input, std::vector<Pieces> output);

Plan plan_send(int peer, const Pieces& buffer);
Plan plan_receive(int peer, const Pieces& buffer);  // peer may be kAnySource

// An empty message to and from every rank.
Plan plan_barrier(int self, int size);

// Cuts `base` into consecutive pieces of the given sizes, one per rank.
std::vector<Pieces> split_buffer(std::byte* base, std::span<const size_t> bytes);

}  // namespace freescale
