#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "backend/exchange_steps.h"
#include "cpp/scheduler/engine.h"

namespace freescale {

// Drives the blocks of one collective through their stages, kBlocksInFlight at a time. Lives in the
// completions of its exchanges; when a block fails it starts no more, tells the peers, and reports
// once what is in flight has ended.
class ExchangePipeline : public std::enable_shared_from_this<ExchangePipeline> {
 public:
  // `model` has all that the exchanges share: group, signature, sequence, priority, deadline.
  // `on_done` is called exactly once, as Request::on_done is.
  ExchangePipeline(Engine& engine, Request model, std::unique_ptr<ExchangeSteps> steps,
                   std::function<void(const OpResult&)> on_done);

  void start();

 private:
  void submit(const Block& block, int stage);
  std::shared_ptr<const void> kept_memory();
  void on_exchanged(const Block& block, int stage, const OpResult& exchanged) noexcept;
  Status finish_stage(const Block& block, int stage);
  // Submits what follows in this slot; false when nothing does.
  bool advance(const Block& block, int stage);
  void note_exchanged(const OpResult& exchanged, bool first);
  void note_failure(const Status& status);
  OpResult outcome();

  Engine& engine_;
  const Request model_;
  const std::unique_ptr<ExchangeSteps> steps_;
  std::function<void(const OpResult&)> on_done_;
  std::atomic<int64_t> next_block_{0};
  std::atomic<int> slots_in_use_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards the rest
  Status failure_;    // the first one
  Status late_;       // likewise
  PathSet paths_;
  Nanoseconds ready_ = 0;  // of the first exchange: who has come to that has called
};

}  // namespace freescale
