#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/environment.h"
#include "backend/options.h"
#include "backend/process_device.h"
#include "cpp/rendezvous/mesh.h"
#include "cpp/scheduler/engine.h"

namespace freescale {

// The engine and the links of this process: made by the first group, shared by all, gone with the
// last one. Groups own it; works and completions do not, since the engine cannot be destroyed on
// its own thread.
class ProcessEngine {
 public:
  // Throws c10::ValueError when `options` give an aging, or `environment` a link rate, that the
  // engine does not have.
  static std::shared_ptr<ProcessEngine> acquire(const BackendOptions& options,
                                                const Environment& environment);

  // Where else than among the system's libraries UCX may be; for engines made later. Python knows,
  // which has installed it.
  static void set_ucx_candidates(std::vector<std::string> paths);

  // The one that is in use, or null.
  static std::shared_ptr<ProcessEngine> current();

  // Closes every group of this process. For the end of the program: afterwards no completion runs
  // Python code any more.
  static void close_all_groups(const std::string& reason);

  // Totals of this process, those of engines that are gone included.
  static std::vector<OpStatistics> statistics();
  static std::vector<LinkStatistics> link_statistics();
  static void reset_statistics();

  ~ProcessEngine();
  ProcessEngine(const ProcessEngine&) = delete;
  ProcessEngine& operator=(const ProcessEngine&) = delete;

  Engine& engine() { return *engine_; }
  Mesh& mesh() { return *mesh_; }
  // The device of this process's CUDA tensors, opened by the first call on one. Throws if it cannot
  // be used, or is another than that of earlier calls.
  ProcessDevice& device(const CallSite& site, c10::Device device, const Environment& environment);
  // In bytes per second, when one is emulated.
  std::optional<uint64_t> emulated_link_rate() const { return emulated_link_rate_; }

  // Before the group's first operation. `ranks_on_host` members, the own rank included, share the
  // cores of this host.
  void add_group(const std::shared_ptr<Group>& group, int ranks_on_host);

  // Whether this process is a fork of the one that made the engine: threads, links and locks are
  // not its own then, and nothing of the engine may be touched.
  bool is_forked_copy() const;

 private:
  ProcessEngine(const BackendOptions& options, const Environment& environment);
  void check_aging(const BackendOptions& options) const;
  void check_link_rate(const Environment& environment) const;

  const int fork_generation_;
  const std::chrono::nanoseconds aging_;
  const std::optional<uint64_t> emulated_link_rate_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Engine> engine_;
  std::mutex device_mutex_;  // guards device_
  std::unique_ptr<ProcessDevice> device_;

  std::mutex mutex_;  // guards the rest
  std::vector<std::weak_ptr<Group>> groups_;
  int most_ranks_on_host_ = 0;
};

}  // namespace freescale
