#include "backend/exchange_pipeline.h"

#include <algorithm>
#include <exception>

#include "backend/errors.h"

namespace freescale {

ExchangePipeline::ExchangePipeline(Engine& engine, Request model,
                                   std::unique_ptr<ExchangeSteps> steps,
                                   std::function<void(const OpResult&)> on_done)
    : engine_(engine),
      model_(std::move(model)),
      steps_(std::move(steps)),
      on_done_(std::move(on_done)) {}

void ExchangePipeline::start() {
  const auto slots = static_cast<int>(std::min<int64_t>(steps_->blocks(), kBlocksInFlight));
  next_block_ = slots;
  slots_in_use_ = slots;
  for (int slot = 0; slot < slots; ++slot) submit({slot, slot}, 0);
}

void ExchangePipeline::submit(const Block& block, int stage) {
  Request request = model_;
  request.part = static_cast<uint32_t>(block.index * steps_->stages() + stage);
  steps_->plan_stage(block, stage, request.plan);
  request.keep_memory = [this] { return kept_memory(); };
  request.on_done = [held = shared_from_this(), block, stage](const OpResult& result) mutable {
    // Let go of here, where no lock is held: the last one frees the scratch memory.
    const std::shared_ptr<ExchangePipeline> self = std::move(held);
    self->on_exchanged(block, stage, result);
  };
  engine_.submit(std::move(request));
}

// The tensors of the call, and the scratch memory of the steps.
std::shared_ptr<const void> ExchangePipeline::kept_memory() {
  using Kept = std::pair<std::shared_ptr<ExchangePipeline>, std::shared_ptr<const void>>;
  return std::make_shared<Kept>(shared_from_this(),
                                model_.keep_memory ? model_.keep_memory() : nullptr);
}

void ExchangePipeline::on_exchanged(const Block& block, int stage,
                                    const OpResult& exchanged) noexcept {
  note_exchanged(exchanged, block.index == 0 && stage == 0);
  const Status status = exchanged.status.ok() ? finish_stage(block, stage) : exchanged.status;
  if (!status.ok()) note_failure(status);
  if (!failed_ && advance(block, stage)) return;
  if (slots_in_use_.fetch_sub(1) == 1) on_done_(outcome());
}

Status ExchangePipeline::finish_stage(const Block& block, int stage) {
  try {
    steps_->finish_stage(block, stage);
    return {};
  } catch (const std::exception& error) {
    const CallSite site{model_.group->rank(), model_.plan.signature.op, model_.sequence};
    return Status::system(c10::str(site, "local work: ", exception_text(error)));
  }
}

bool ExchangePipeline::advance(const Block& block, int stage) {
  if (stage + 1 < steps_->stages()) {
    submit(block, stage + 1);
    return true;
  }
  const int64_t next = next_block_.fetch_add(1);
  if (next >= steps_->blocks()) return false;
  submit({next, block.slot}, 0);
  return true;
}

void ExchangePipeline::note_exchanged(const OpResult& exchanged, bool first) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (first) ready_ = exchanged.ready;
  paths_.add(exchanged.paths);
  if (late_.ok()) late_ = exchanged.late;
}

void ExchangePipeline::note_failure(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_) return;
    failure_ = status;
    failed_ = true;
  }
  // Peers may await exchanges that this rank will not begin now.
  engine_.reject(*model_.group, model_.sequence, model_.plan.signature.op, status.message());
}

OpResult ExchangePipeline::outcome() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {failure_, late_, kAnySource, paths_, ready_};
}

}  // namespace freescale
