#include "cpp/collectives/collectives.h"

#include <algorithm>
#include <utility>

namespace freescale {
namespace {

std::vector<Message> one_message_per_rank(std::vector<Pieces> pieces) {
  std::vector<Message> messages;
  messages.reserve(pieces.size());
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    messages.push_back({static_cast<int>(rank), std::move(pieces[rank])});
  }
  return messages;
}

// Each rank starts with the one after it, so that not all of them write to rank 0 first.
void rotate_to_next(std::vector<Message>& messages, int self) {
  std::rotate(messages.begin(), messages.begin() + self, messages.end());
}

// The same to, or from, each other rank, the next one first.
void add_others(std::vector<Message>& messages, int self, int size, const Pieces& pieces) {
  for (int step = 1; step < size; ++step) messages.push_back({(self + step) % size, pieces});
}

// Where no data goes between a root and another rank. The header of an empty message says that the
// rank has come, and how it called: without it two ranks that take each other for the root of a
// broadcast would wait until their timeout, and a root whose receivers expect another size would
// learn of it from a later collective.
const Pieces kNoData;

}  // namespace

Plan plan_all_to_all(int self, std::vector<Pieces> input, std::vector<Pieces> output) {
  Plan plan;
  plan.sends = one_message_per_rank(std::move(input));
  plan.receives = one_message_per_rank(std::move(output));
  rotate_to_next(plan.sends, self);
  rotate_to_next(plan.receives, self);
  return plan;
}

size_t pass_through_bytes(int self, const HostMap& hosts, size_t bytes) {
  const size_t mates = hosts.ranks_on(hosts.host_of(self)).size() - 1;
  return hosts.served_by(self).size() * mates * bytes;
}

namespace {

void append(Pieces& to, const Pieces& more) { to.insert(to.end(), more.begin(), more.end()); }

// The exchange in which each rank gets what its host has for the ranks that it serves.
Plan plan_collect(int self, const HostMap& hosts, const std::vector<Pieces>& input,
                  const std::vector<Pieces>& output, size_t bytes, std::byte* passing) {
  Plan plan;
  plan.sends.push_back({self, input[self]});
  plan.receives.push_back({self, output[self]});
  const size_t served = hosts.served_by(self).size();
  for (const int mate : hosts.ranks_on(hosts.host_of(self))) {
    if (mate == self) continue;
    Pieces for_mate = input[mate];
    for (const int rank : hosts.served_by(mate)) append(for_mate, input[rank]);
    plan.sends.push_back({mate, std::move(for_mate)});
    Pieces from_mate = output[mate];
    from_mate.push_back({passing, served * bytes});
    passing += served * bytes;
    plan.receives.push_back({mate, std::move(from_mate)});
  }
  return plan;
}

// The exchange between the hosts: for each rank that this one serves the pieces of the whole host.
Plan plan_forward(int self, const HostMap& hosts, const std::vector<Pieces>& input,
                  const std::vector<Pieces>& output, size_t bytes, std::byte* passing) {
  const int host = hosts.host_of(self);
  const std::vector<int>& served = hosts.served_by(self);
  Plan plan;
  for (size_t place = 0; place < served.size(); ++place) {
    Pieces pieces;
    std::byte* of_mate = passing + place * bytes;
    for (const int mate : hosts.ranks_on(host)) {
      if (mate == self) {
        append(pieces, input[served[place]]);
        continue;
      }
      pieces.push_back({of_mate, bytes});
      of_mate += served.size() * bytes;
    }
    plan.sends.push_back({served[place], std::move(pieces)});
  }
  for (int other = 0; other < hosts.hosts(); ++other) {
    if (other == host) continue;
    Pieces pieces;
    for (const int rank : hosts.ranks_on(other)) append(pieces, output[rank]);
    plan.receives.push_back({hosts.entry(self, other), std::move(pieces)});
  }
  return plan;
}

}  // namespace

std::vector<Plan> plan_all_to_all_by_host(int self, const HostMap& hosts,
                                          const std::vector<Pieces>& input,
                                          const std::vector<Pieces>& output, size_t bytes,
                                          std::byte* passing) {
  return {plan_collect(self, hosts, input, output, bytes, passing),
          plan_forward(self, hosts, input, output, bytes, passing)};
}

Plan plan_all_gather(int self, const Pieces& input, std::vector<Pieces> output) {
  std::vector<Pieces> same(output.size(), input);
  return plan_all_to_all(self, std::move(same), std::move(output));
}

namespace {

// The exchange in which what has come from other hosts is spread within each.
Plan plan_spread(int self, const HostMap& hosts, const std::vector<Pieces>& output) {
  const int host = hosts.host_of(self);
  Pieces own;                                 // what this rank was sent, by ascending rank
  std::vector<Pieces> others(output.size());  // what each other one of this host was
  for (int rank = 0; rank < static_cast<int>(output.size()); ++rank) {
    if (hosts.host_of(rank) == host) continue;
    const int entry = hosts.entry(rank, host);
    append(entry == self ? own : others[entry], output[rank]);
  }
  Plan plan;
  for (const int rank : hosts.ranks_on(host)) {
    if (rank == self) continue;
    plan.sends.push_back({rank, own});
    plan.receives.push_back({rank, std::move(others[rank])});
  }
  return plan;
}

}  // namespace

std::vector<Plan> plan_all_gather_by_host(int self, const HostMap& hosts, const Pieces& input,
                                          const std::vector<Pieces>& output) {
  const int host = hosts.host_of(self);
  Plan first;
  for (int rank = 0; rank < static_cast<int>(output.size()); ++rank) {
    const bool near = hosts.host_of(rank) == host;
    if (near || hosts.entry(self, hosts.host_of(rank)) == rank) {
      first.sends.push_back({rank, input});
    }
    if (near || hosts.entry(rank, host) == self) first.receives.push_back({rank, output[rank]});
  }
  return {std::move(first), plan_spread(self, hosts, output)};
}

Plan plan_broadcast(int self, int size, int root, const Pieces& buffer) {
  Plan plan;
  if (self != root) {
    plan.receives.push_back({root, buffer});
    plan.sends.push_back({root, kNoData});
    return plan;
  }
  add_others(plan.sends, self, size, buffer);
  add_others(plan.receives, self, size, kNoData);
  return plan;
}

Plan plan_scatter(int self, int root, std::vector<Pieces> input, const Pieces& output) {
  Plan plan;
  plan.receives.push_back({root, output});
  if (self == root) {
    const auto size = static_cast<int>(input.size());
    plan.sends = one_message_per_rank(std::move(input));
    rotate_to_next(plan.sends, self);
    add_others(plan.receives, self, size, kNoData);
  } else {
    plan.sends.push_back({root, kNoData});
  }
  return plan;
}

Plan plan_gather(int self, int root, const Pieces& input, std::vector<Pieces> output) {
  Plan plan;
  plan.sends.push_back({root, input});
  if (self == root) {
    const auto size = static_cast<int>(output.size());
    plan.receives = one_message_per_rank(std::move(output));
    rotate_to_next(plan.receives, self);
    add_others(plan.sends, self, size, kNoData);
  } else {
    plan.receives.push_back({root, kNoData});
  }
  return plan;
}

Plan plan_send(int peer, const Pieces& buffer) {
  Plan plan;
  plan.sends.push_back({peer, buffer});
  return plan;
}

Plan plan_receive(int peer, const Pieces& buffer) {
  Plan plan;
  plan.receives.push_back({peer, buffer});
  return plan;
}

Plan plan_barrier(int self, int size) {
  const std::vector<Pieces> nothing(size);
  return plan_all_to_all(self, nothing, nothing);
}

std::vector<Pieces> split_buffer(std::byte* base, std::span<const size_t> bytes) {
  std::vector<Pieces> pieces;
  pieces.reserve(bytes.size());
  for (const size_t length : bytes) {
    pieces.push_back({Segment{base, length}});
    base += length;
  }
  return pieces;
}

}  // namespace freescale
