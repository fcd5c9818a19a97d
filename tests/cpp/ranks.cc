#include "tests/cpp/ranks.h"

#include <condition_variable>
#include <cstdlib>
#include <thread>

#include "tests/cpp/check.h"

namespace freescale::testing {

Status MemoryStore::set(const std::string& key, const std::string& value) {
  std::lock_guard<std::mutex> lock(mutex_);
  values_[key] = value;
  return {};
}

Result<std::string> MemoryStore::get(const std::string& key, Deadline deadline) {
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
    }
    if (deadline.passed(now_ns())) return Status::timed_out("no key " + key);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

namespace {

// Keys of one group, apart from those of others.
class PrefixedStore : public KeyValueStore {
 public:
  PrefixedStore(KeyValueStore& store, std::string prefix)
      : store_(store), prefix_(std::move(prefix)) {}
  Status set(const std::string& key, const std::string& value) override {
    return store_.set(prefix_ + key, value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    return store_.get(prefix_ + key, deadline);
  }

 private:
  KeyValueStore& store_;
  const std::string prefix_;
};

}  // namespace

Membership join(Mesh& mesh, KeyValueStore& store, int rank, int size) {
  Result<Membership> joined =
      mesh.join(store, rank, size, Deadline::after(std::chrono::seconds(10)));
  CHECK_OK(joined);
  return std::move(joined.value());
}

bool over_network() { return std::getenv("FREESCALE_TEST_NETWORK") != nullptr; }

Rank::Rank(KeyValueStore& store, int rank, int size, EngineOptions options, LinkWrapper wrap)
    : store_(store), rank_(rank), size_(size) {
  MeshOptions mesh_options{.wrap = std::move(wrap), .host = {}, .network = {}};
  // But links are wrapped within a host alone.
  if (over_network() && mesh_options.wrap == nullptr) {
    const int ranks_of_host = std::stoi(std::getenv("FREESCALE_TEST_NETWORK"));
    mesh_options.host = "host " + std::to_string(rank / ranks_of_host);
  }
  Result<std::unique_ptr<Mesh>> mesh = Mesh::create(std::move(mesh_options));
  CHECK_OK(mesh.status());
  mesh_ = std::move(mesh.value());
  engine_ = std::make_unique<Engine>(options, mesh_->doorbell());
  group_ = new_group("world");
}

Rank::~Rank() { engine_->close_group(*group_, "destroyed"); }

std::shared_ptr<Group> Rank::new_group(const std::string& name) {
  PrefixedStore keys(store_, name + "/");
  Membership members = join(*mesh_, keys, rank_, size_);
  auto group = std::make_shared<Group>(members.group_id, name, rank_, std::move(members.links));
  engine_->add_group(group);
  return group;
}

std::shared_ptr<Rank::Handle> Rank::start(Plan plan, Priority priority,
                                          std::shared_ptr<Group> group, uint32_t tag,
                                          std::chrono::milliseconds timeout) {
  auto handle = std::make_shared<Handle>();
  Request request;
  request.group = group ? std::move(group) : group_;
  const OpKind op = plan.signature.op;
  if (op != OpKind::kSend && op != OpKind::kRecv) request.sequence = request.group->next_sequence();
  request.plan = std::move(plan);
  request.tag = tag;
  request.priority = priority;
  request.timeout = timeout;
  request.deadline = Deadline::after(timeout);
  request.on_done = [handle](const OpResult& result) {
    handle->result = result;
    handle->completion.set();
  };
  engine_->submit(std::move(request));
  return handle;
}

Status Rank::finish(Handle& handle) {
  CHECK(engine_->wait(handle.completion, Deadline::after(std::chrono::seconds(30))));
  return handle.result.status;
}

Status Rank::barrier() { return run(signed_plan(plan_barrier(rank_, size_), OpKind::kBarrier)); }

void run_ranks(int size, const std::function<void(Rank&)>& body, EngineOptions options,
               const std::function<LinkWrapper()>& make_wrapper) {
  MemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank self(store, rank, size, options, make_wrapper ? make_wrapper() : nullptr);
      body(self);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Most of what a test does is this loop; ThreadSanitizer would make it 20 times slower to find out
// that a local variable is not shared.
__attribute__((no_sanitize("thread"))) std::vector<std::byte> pattern_bytes(int from, int to,
                                                                            size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::byte* out = data.data();
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<std::byte>(from * 31 + to * 7 + i * 13 + (i >> 8) * 3 + 1);
  }
  return data;
}

Plan signed_plan(Plan plan, OpKind op, std::string_view dtype) {
  plan.signature.op = op;
  plan.signature.set_dtype(dtype);
  return plan;
}

Pieces piece(std::vector<std::byte>& buffer) { return {Segment{buffer.data(), buffer.size()}}; }

Buffers::Buffers(int rank, int size, size_t bytes)
    : out(size, pattern_bytes(rank, 0, bytes)), in(size, std::vector<std::byte>(bytes)) {}

Plan Buffers::plan(int rank) {
  std::vector<Pieces> input, output;
  for (auto& one : out) input.push_back(piece(one));
  for (auto& one : in) output.push_back(piece(one));
  return signed_plan(plan_all_to_all(rank, input, output), OpKind::kAllToAll);
}

void await(const std::function<bool()>& happened, Deadline limit) {
  while (!happened()) {
    CHECK(!limit.passed(now_ns()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void expect_text(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (text.find(part) == std::string::npos) {
      CHECK_EQ(text, "something with '" + std::string(part) + "'");
    }
  }
}

}  // namespace freescale::testing
