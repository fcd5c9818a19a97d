#include "tests/cpp/device_ranks.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "tests/cpp/check.h"

namespace freescale::testing {
namespace {

cuda::CallMemory::Message message_of(const Group& group, const Message& message) {
  const bool own = message.peer == group.rank();
  return {message.peer, own ? nullptr : group.shared_link(message.peer), message.segments};
}

// With the first message to a rank a few more copies are made, which tests do not want to count.
void prove_access(DeviceRank& self) {
  DeviceExchange exchange(self, [](int, int) { return 1; });
  const auto handle =
      self.start(exchange.plan(), self.stream, {.group = self.rank.new_group("access")});
  CHECK_OK(self.finish(*handle));
}

void run_rank(const DeviceSetup& setup, int rank, SharedStore& store, const DeviceBody& body) {
  StandIn stand_in(setup.environment);
  Result<cuda::PrimaryContext> context =
      cuda::PrimaryContext::retain(stand_in.driver(), setup.device_of(rank));
  CHECK_OK(context);
  const cuda::CurrentContext current(context.value());
  auto device = cuda::CudaDevice::open(setup.device_of(rank), setup.options);
  CHECK_OK(device);
  Rank self(store, rank, setup.size, setup.engine);
  DeviceRank device_rank{stand_in, *device.value(), self, store, stand_in.stream()};
  if (setup.proves_access) prove_access(device_rank);
  body(device_rank);
}

}  // namespace

Result<std::shared_ptr<cuda::CudaCall>> DeviceRank::begin(const Plan& plan, cuda::Stream at,
                                                          const Call& call) {
  const Group& group = call.group == nullptr ? *rank.group() : *call.group;
  cuda::CallMemory memory;
  memory.keep = call.keep;
  for (const Message& message : plan.sends) memory.sends.push_back(message_of(group, message));
  for (const Message& message : plan.receives) {
    memory.receives.push_back(message_of(group, message));
  }
  return device.begin(at, std::move(memory));
}

std::shared_ptr<DeviceRank::Handle> DeviceRank::start(Plan plan, cuda::Stream at, Call call) {
  Result<std::shared_ptr<cuda::CudaCall>> begun = begin(plan, at, call);
  CHECK_OK(begun);
  return submit(std::move(begun.value()), std::move(plan), call);
}

std::shared_ptr<DeviceRank::Handle> DeviceRank::submit(std::shared_ptr<cuda::CudaCall> begun,
                                                       Plan plan, const Call& call) {
  auto handle = std::make_shared<Handle>();
  handle->call = begun;
  Request request;
  request.group = call.group == nullptr ? rank.group() : call.group;
  request.sequence = request.group->next_sequence();
  request.plan = std::move(plan);
  request.priority = call.priority;
  request.timeout = call.timeout;
  request.deadline = Deadline::after(call.timeout);
  request.device = std::move(begun);
  request.on_submitted = [handle] { handle->submitted.set(); };
  request.on_done = [handle](const OpResult& result) {
    handle->result = result;
    handle->done.set();
    handle->submitted.set();
  };
  rank.engine().submit(std::move(request));
  return handle;
}

Status DeviceRank::order(Handle& handle, cuda::Stream at) {
  if (device.submits_ahead()) {
    CHECK(rank.engine().wait(handle.submitted, Deadline::after(std::chrono::seconds(30))));
  }
  if (handle.done.is_set() && !handle.result.status.ok()) return handle.result.status;
  return handle.call->wait_on(at);
}

Status DeviceRank::finish(Handle& handle) {
  CHECK(rank.engine().wait(handle.done, Deadline::after(std::chrono::seconds(30))));
  return handle.result.status;
}

void synchronize(DeviceRank& self, cuda::Stream stream) {
  CHECK_OK(self.stand_in.driver().stream_synchronize(stream));
}

Status end(DeviceRank& self, DeviceRank::Handle& handle) {
  Status status = self.finish(handle);
  handle.call.reset();
  return status;
}

DeviceRankProcesses::DeviceRankProcesses(const DeviceSetup& setup, const DeviceBody& body) {
  for (int rank = 0; rank < setup.size; ++rank) {
    children_.emplace_back([&, rank] { run_rank(setup, rank, store_, body); });
  }
}

void DeviceRankProcesses::expect_success(const std::vector<int>& lost) {
  for (size_t rank = 0; rank < children_.size(); ++rank) {
    const bool is_lost = std::find(lost.begin(), lost.end(), static_cast<int>(rank)) != lost.end();
    if (!is_lost) children_[rank].expect_success();
  }
}

DeviceSetup setup_for(const DeviceWay& way, int size) {
  DeviceSetup setup;
  setup.size = size;
  setup.environment = {{"FAKE_CUDA_DEVICES", std::to_string(way.direct ? 1 : size)},
                       {"FAKE_CUDA_P2P", "none"}};
  setup.options.submission = way.mode;
  setup.options.chunk_bytes = 64 << 10;
  setup.engine.oversubscribed = true;
  setup.device_of = [direct = way.direct](int rank) { return direct ? 0 : rank; };
  return setup;
}

void run_device_ranks(const DeviceSetup& setup, const DeviceBody& body) {
  DeviceRankProcesses(setup, body).expect_success();
}

namespace {

std::vector<size_t> by_peer(int ranks, const std::function<size_t(int peer)>& bytes) {
  std::vector<size_t> all;
  for (int peer = 0; peer < ranks; ++peer) all.push_back(bytes(peer));
  return all;
}

size_t sum(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

std::string pattern(int from, int to, int round, size_t bytes) {
  const std::vector<std::byte> data = pattern_bytes(from + 11 * round, to + 5 * round, bytes);
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

std::byte* host_view(cuda::DevicePtr address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

std::map<size_t, std::vector<DeviceExchange::Memory>>& DeviceExchange::pool() {
  static std::map<size_t, std::vector<Memory>> free;
  return free;
}

DeviceExchange::Buffer::Buffer(const StandIn& stand_in, size_t size, const Allocate& allocate)
    : bytes(size), pooled(size > 0 && !allocate) {
  if (bytes == 0) return;
  std::vector<Memory>& free = pool()[std::bit_ceil(bytes)];
  if (pooled && !free.empty()) {
    static_cast<Memory&>(*this) = free.back();
    free.pop_back();
    return;
  }
  device = pooled ? stand_in.allocate(std::bit_ceil(bytes)) : allocate(bytes);
  void* memory = nullptr;
  CHECK_OK(stand_in.driver().mem_host_alloc(&memory, std::bit_ceil(bytes),
                                            cuda::kHostPortable | cuda::kHostDeviceMap));
  CHECK_OK(stand_in.driver().mem_host_get_device_pointer(&pinned, memory, 0));
  host = static_cast<char*>(memory);
}

DeviceExchange::Buffer::~Buffer() {
  if (pooled) pool()[std::bit_ceil(bytes)].push_back(*this);
}

DeviceExchange::DeviceExchange(DeviceRank& self, const Sizes& sizes, int ranks)
    : DeviceExchange(self, sizes, ranks, nullptr) {}

DeviceExchange::DeviceExchange(DeviceRank& self, const Sizes& sizes, int ranks,
                               const Allocate& allocate)
    : self_(self),
      out_bytes_(by_peer(ranks, [&](int peer) { return sizes(self.rank.rank(), peer); })),
      in_bytes_(by_peer(ranks, [&](int peer) { return sizes(peer, self.rank.rank()); })),
      out_(self.stand_in, sum(out_bytes_), allocate),
      in_(self.stand_in, sum(in_bytes_), allocate),
      garbage_(self.stand_in, sum(in_bytes_), allocate) {
  std::fill_n(garbage_.host, garbage_.bytes, '\xee');
}

Plan DeviceExchange::plan() const {
  return signed_plan(
      plan_all_to_all(self_.rank.rank(), split_buffer(host_view(out_.device), out_bytes_),
                      split_buffer(host_view(in_.device), in_bytes_)),
      OpKind::kAllToAllSingle);
}

void DeviceExchange::fill(int round, cuda::Stream stream) {
  char* to = out_.host;
  for (size_t peer = 0; peer < out_bytes_.size(); ++peer) {
    const std::string data =
        pattern(self_.rank.rank(), static_cast<int>(peer), round, out_bytes_[peer]);
    to = std::copy(data.begin(), data.end(), to);
  }
  const cuda::Driver& driver = self_.stand_in.driver();
  if (out_.bytes > 0) {
    CHECK_OK(driver.memcpy_async(out_.device, out_.pinned, out_.bytes, stream));
  }
  if (in_.bytes > 0) {
    CHECK_OK(driver.memcpy_async(in_.device, garbage_.pinned, in_.bytes, stream));
  }
}

void DeviceExchange::fetch(cuda::Stream stream) const {
  if (in_.bytes == 0) return;
  CHECK_OK(self_.stand_in.driver().memcpy_async(in_.pinned, in_.device, in_.bytes, stream));
}

std::string DeviceExchange::expected(int round) const {
  std::string all;
  for (size_t peer = 0; peer < in_bytes_.size(); ++peer) {
    all += pattern(static_cast<int>(peer), self_.rank.rank(), round, in_bytes_[peer]);
  }
  return all;
}

bool DeviceExchange::holds(int round) const {
  return expected(round) == std::string(in_.host, in_.bytes);
}

bool DeviceExchange::untouched() const {
  return std::all_of(in_.host, in_.host + in_.bytes, [](char byte) { return byte == '\xee'; });
}

void DeviceExchange::check(int round) const { CHECK(holds(round)); }

void fill_multiprocessors(const DeviceRank& self, StandIn::Word until) {
  CHECK(self.stand_in.launch_kernel(self.stand_in.stream(), "filler", until.host) ==
        cuda::Code::kSuccess);
  self.stand_in.await([](const FakeCudaState& now) { return now.running_kernels > 0; });
}

size_t some_chunks(int from, int to) {
  return 150'000 + static_cast<size_t>(10'000 * from + 1'000 * to);
}

void expect_works(DeviceRank& self, std::shared_ptr<Group> group) {
  if (group == nullptr) group = self.rank.group();
  static int round = 100;
  ++round;
  const cuda::Stream stream = self.stand_in.stream();
  DeviceExchange exchange(self, some_chunks, group->size());
  exchange.fill(round, stream);
  const auto handle = self.start(exchange.plan(), stream, {.group = group});
  CHECK_OK(self.order(*handle, stream));
  CHECK_OK(self.stand_in.driver().stream_synchronize(stream));
  exchange.fetch(stream);
  CHECK_OK(self.stand_in.driver().stream_synchronize(stream));
  exchange.check(round);
  CHECK_OK(self.finish(*handle));
}

}  // namespace freescale::testing
