#include "backend/process_engine.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "backend/errors.h"
#include "cpp/transport/emulated_nic.h"
#include "cpp/transport/paced_link.h"

namespace freescale {
namespace {

std::atomic<int> fork_generation{0};

struct Registry {
  std::mutex mutex;
  std::weak_ptr<ProcessEngine> current;
  // Of engines that are gone.
  std::vector<OpStatistics> retired;
  std::vector<LinkStatistics> retired_links;
};

// Never destroyed: groups may be dropped after the destructors of static objects have run.
Registry& registry() {
  static Registry* const instance = [] {
    pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
    return new Registry;
  }();
  return *instance;
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

std::chrono::nanoseconds choose_aging(const BackendOptions& options,
                                      const Environment& environment) {
  if (options.aging) return *options.aging;
  if (environment.aging) return *environment.aging;
  return EngineOptions{}.aging;
}

// All links of the process share one card.
LinkWrapper link_wrapper(std::optional<uint64_t> rate) {
  if (!rate) return nullptr;
  TORCH_WARN("freescale: FREESCALE_EMULATED_LINK_RATE is set: this process sends ", *rate,
             " bytes/s at most. For experiments only.");
  auto nic = std::make_shared<EmulatedNic>(*rate);
  return [nic](std::shared_ptr<Link> link) {
    return std::make_shared<PacedLink>(std::move(link), nic);
  };
}

std::mutex ucx_candidates_mutex;

std::vector<std::string>& known_ucx_candidates() {
  static auto* const candidates = new std::vector<std::string>();
  return *candidates;
}

std::vector<std::string> ucx_candidates() {
  const std::lock_guard lock(ucx_candidates_mutex);
  return known_ucx_candidates();
}

std::pair<OpKind, Priority> key_of(const OpStatistics& row) { return {row.op, row.priority}; }
int key_of(const LinkStatistics& row) { return row.peer; }

template <typename Row>
std::vector<Row> add_up(const std::vector<Row>& one, const std::vector<Row>& other) {
  std::map<decltype(key_of(Row())), Row> sums;
  for (const auto* rows : {&one, &other}) {
    for (const Row& row : *rows) {
      const auto [sum, fresh] = sums.try_emplace(key_of(row), row);
      if (!fresh) sum->second += row;
    }
  }
  std::vector<Row> rows;
  for (const auto& [key, sum] : sums) rows.push_back(sum);
  return rows;
}

}  // namespace

void ProcessEngine::set_ucx_candidates(std::vector<std::string> paths) {
  const std::lock_guard lock(ucx_candidates_mutex);
  known_ucx_candidates() = std::move(paths);
}

std::shared_ptr<ProcessEngine> ProcessEngine::acquire(const BackendOptions& options,
                                                      const Environment& environment) {
  std::shared_ptr<ProcessEngine> process;  // outlives the lock: its destructor takes it too
  std::lock_guard<std::mutex> lock(registry().mutex);
  process = registry().current.lock();
  if (process != nullptr && !process->is_forked_copy()) {
    process->check_aging(options);
    process->check_link_rate(environment);
    return process;
  }
  process.reset(new ProcessEngine(options, environment));
  registry().current = process;
  return process;
}

std::shared_ptr<ProcessEngine> ProcessEngine::current() {
  std::lock_guard<std::mutex> lock(registry().mutex);
  std::shared_ptr<ProcessEngine> process = registry().current.lock();
  return process != nullptr && !process->is_forked_copy() ? process : nullptr;
}

ProcessEngine::ProcessEngine(const BackendOptions& options, const Environment& environment)
    : fork_generation_(fork_generation.load()),
      aging_(choose_aging(options, environment)),
      emulated_link_rate_(environment.emulated_link_rate) {
  MeshOptions mesh_options;
  mesh_options.wrap = link_wrapper(emulated_link_rate_);
  mesh_options.host = environment.host;
  mesh_options.network.libraries = ucx_candidates();
  mesh_options.network.interfaces = environment.interfaces;
  mesh_options.network.heartbeat = environment.heartbeat;
  Result<std::unique_ptr<Mesh>> mesh = Mesh::create(std::move(mesh_options));
  if (!mesh.ok()) throw_status(mesh.status());
  mesh_ = std::move(mesh.value());
  EngineOptions engine_options;
  engine_options.aging = aging_;
  if (environment.spin) engine_options.spin = *environment.spin;
  engine_ = std::make_unique<Engine>(engine_options, mesh_->doorbell());
}

ProcessEngine::~ProcessEngine() {
  if (is_forked_copy()) {
    // The threads to be joined exist only in the process that was forked.
    (void)device_.release();
    (void)engine_.release();
    (void)mesh_.release();
    return;
  }
  const std::vector<OpStatistics> totals = engine_->statistics().snapshot();
  const std::vector<LinkStatistics> links = engine_->statistics().links();
  {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().retired = add_up(registry().retired, totals);
    registry().retired_links = add_up(registry().retired_links, links);
  }
  engine_.reset();  // the device after it, which its calls use
}

ProcessDevice& ProcessEngine::device(const CallSite& site, c10::Device device,
                                     const Environment& environment) {
  const std::lock_guard<std::mutex> lock(device_mutex_);
  if (device_ == nullptr) {
    const auto notify = [&doorbell = mesh_->doorbell()] {
      doorbell.ring_always(Doorbell::kCaller | Doorbell::kEngine);
    };
    device_ = std::make_unique<ProcessDevice>(site, device, environment, aging_, notify);
  }
  device_->check_same(site, device);
  return *device_;
}

void ProcessEngine::check_aging(const BackendOptions& options) const {
  TORCH_CHECK_VALUE(!options.aging || *options.aging == aging_,
                    "freescale: aging belongs to the process, whose first group set it to ",
                    std::chrono::duration_cast<std::chrono::microseconds>(aging_).count(),
                    " us; a later group asks for ", options.aging->count(), " us");
}

void ProcessEngine::check_link_rate(const Environment& environment) const {
  const auto text = [](const std::optional<uint64_t>& rate) {
    return rate ? std::to_string(*rate) + " bytes/s" : std::string("none");
  };
  TORCH_CHECK_VALUE(environment.emulated_link_rate == emulated_link_rate_,
                    "freescale: FREESCALE_EMULATED_LINK_RATE belongs to the process, whose first "
                    "group read ",
                    text(emulated_link_rate_), "; a later group reads ",
                    text(environment.emulated_link_rate));
}

bool ProcessEngine::is_forked_copy() const { return fork_generation_ != fork_generation.load(); }

void ProcessEngine::add_group(const std::shared_ptr<Group>& group, int ranks_on_host) {
  bool oversubscribed = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(groups_, [](const std::weak_ptr<Group>& known) { return known.expired(); });
    groups_.push_back(group);
    most_ranks_on_host_ = std::max(most_ranks_on_host_, ranks_on_host);
    oversubscribed = most_ranks_on_host_ > available_cores();
  }
  engine_->set_oversubscribed(oversubscribed);
  engine_->add_group(group);
}

void ProcessEngine::close_all_groups(const std::string& reason) {
  const std::shared_ptr<ProcessEngine> process = current();
  if (process == nullptr) return;
  std::vector<std::weak_ptr<Group>> groups;
  {
    std::lock_guard<std::mutex> lock(process->mutex_);
    groups = process->groups_;
  }
  for (const std::weak_ptr<Group>& known : groups) {
    if (const std::shared_ptr<Group> group = known.lock()) {
      process->engine_->close_group(*group, reason);
    }
  }
}

std::vector<OpStatistics> ProcessEngine::statistics() {
  const std::shared_ptr<ProcessEngine> process = current();
  std::lock_guard<std::mutex> lock(registry().mutex);
  if (process == nullptr) return registry().retired;
  return add_up(registry().retired, process->engine_->statistics().snapshot());
}

std::vector<LinkStatistics> ProcessEngine::link_statistics() {
  const std::shared_ptr<ProcessEngine> process = current();
  std::lock_guard<std::mutex> lock(registry().mutex);
  if (process == nullptr) return registry().retired_links;
  return add_up(registry().retired_links, process->engine_->statistics().links());
}

void ProcessEngine::reset_statistics() {
  const std::shared_ptr<ProcessEngine> process = current();
  std::lock_guard<std::mutex> lock(registry().mutex);
  registry().retired.clear();
  registry().retired_links.clear();
  if (process != nullptr) process->engine_->statistics().reset();
}

}  // namespace freescale
