#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/rendezvous/key_value_store.h"
#include "cpp/transport/shm/doorbell.h"
#include "cpp/transport/transport.h"
#include "cpp/transport/ucx/network.h"

namespace freescale {

// How one pair of ranks is connected, and why: what a user sees when he asks for the links.
struct LinkReport {
  int rank = 0;           // peer's rank in the group
  std::string transport;  // "shm", "ucx", "self"
  std::string reason;     // what the probe found
};

// What joining a group yields.
struct Membership {
  uint64_t group_id = 0;                     // random, the same on all members
  std::vector<std::shared_ptr<Link>> links;  // by rank; null for the own rank
  std::vector<LinkReport> reports;           // by rank
  std::vector<int> hosts;                    // by rank: numbers of hosts, the same on all members
};

// Makes what groups get in the place of a link within a host, on top of it.
using LinkWrapper = std::function<std::shared_ptr<Link>(std::shared_ptr<Link>)>;

struct MeshOptions {
  LinkWrapper wrap;  // may be null; else it is called once for each link
  // Ranks that have given different ones count as on different hosts; for experiments.
  std::string host;
  // For ranks of other hosts; used when there are any.
  ucx::NetworkOptions network;
};

class MeshCore;

// The links of this process to others, made on first need and shared by all groups. Owns the thread
// that accepts connections and watches peers for death (pidfd and socket).
class Mesh {
 public:
  static Result<std::unique_ptr<Mesh>> create(MeshOptions options = {});
  // Hangs up on all peers. Links that others still hold stay readable.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Meets the other members through `store` and connects to each. Blocks until all are connected;
  // after the deadline the error names the ranks that are missing. Thread-safe.
  Result<Membership> join(KeyValueStore& store, int rank, int size, Deadline deadline);

  // Tells the others who wait for this rank in join() that it will not come. join() itself does so
  // when it fails.
  static void refuse(KeyValueStore& store, int rank, const std::string& why);

  // Rung by all peers of this process, and by the mesh when a link has failed.
  Doorbell& doorbell();

 private:
  explicit Mesh(std::unique_ptr<MeshCore> core);
  std::unique_ptr<MeshCore> core_;
};

}  // namespace freescale
