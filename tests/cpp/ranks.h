#pragma once

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cpp/collectives/collectives.h"
#include "cpp/rendezvous/key_value_store.h"
#include "cpp/rendezvous/mesh.h"
#include "cpp/scheduler/engine.h"

namespace freescale::testing {

// A store for ranks that are threads of one process.
class MemoryStore : public KeyValueStore {
 public:
  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

// Meets the other members; they have ten seconds.
Membership join(Mesh& mesh, KeyValueStore& store, int rank, int size);

// One rank: its own mesh, engine and world group.
class Rank {
 public:
  Rank(KeyValueStore& store, int rank, int size, EngineOptions options = {},
       LinkWrapper wrap = nullptr);
  ~Rank();

  int rank() const { return rank_; }
  int size() const { return size_; }
  Engine& engine() { return *engine_; }
  const std::shared_ptr<Group>& group() const { return group_; }
  // A further group of all ranks; collective. A name is used once, as its keys stay in the store.
  std::shared_ptr<Group> new_group(const std::string& name);

  // An operation in flight.
  struct Handle {
    Completion completion;
    OpResult result;
  };
  std::shared_ptr<Handle> start(Plan plan, Priority priority = Priority::kNormal,
                                std::shared_ptr<Group> group = nullptr, uint32_t tag = 0,
                                std::chrono::milliseconds timeout = std::chrono::seconds(15));
  Status finish(Handle& handle);
  Status run(Plan plan) { return finish(*start(std::move(plan))); }
  Status barrier();

 private:
  KeyValueStore& store_;
  const int rank_;
  const int size_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Group> group_;
};

// Until it has happened; fails the test if that is not so by the limit.
void await(const std::function<bool()>& happened,
           Deadline limit = Deadline::after(std::chrono::seconds(10)));

// Whether ranks are on hosts of their own, by FREESCALE_TEST_NETWORK: so many on each. See
// CMakeLists.txt.
bool over_network();

// Runs `body` on `size` ranks, each a thread, and waits for all. `make_wrapper`, if given, makes
// the wrapper of each rank's links.
void run_ranks(int size, const std::function<void(Rank&)>& body, EngineOptions options = {},
               const std::function<LinkWrapper()>& make_wrapper = nullptr);

// What rank `from` sends to rank `to`: every byte differs by both ranks and by its place.
std::vector<std::byte> pattern_bytes(int from, int to, size_t bytes);

// Gives a plan the signature that all ranks agree on.
Plan signed_plan(Plan plan, OpKind op, std::string_view dtype = "uint8");
Pieces piece(std::vector<std::byte>& buffer);

// Rank `rank`'s side of an all-to-all of `bytes` bytes with each of `size` ranks.
struct Buffers {
  Buffers(int rank, int size, size_t bytes);
  Plan plan(int rank);
  std::vector<std::vector<std::byte>> out;
  std::vector<std::vector<std::byte>> in;
};

// With more ranks than cores spinning only steals time; both modes are run all the same.
inline const EngineOptions kModes[] = {{}, {.oversubscribed = true}};

// Fails the test, and shows the text, unless it contains every part.
void expect_text(const std::string& text, std::initializer_list<std::string_view> parts);
inline void expect_text(const std::string& text, std::string_view part) {
  expect_text(text, {part});
}

}  // namespace freescale::testing
