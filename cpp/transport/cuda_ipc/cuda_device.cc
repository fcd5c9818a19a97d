#include "cpp/transport/cuda_ipc/cuda_device.h"

#include <unistd.h>

#include <utility>

#include "cpp/device/ahead_copy_queue.h"
#include "cpp/device/engine_order_probe.h"
#include "cpp/device/proxy_copy_queue.h"

namespace freescale::cuda {
namespace {

// How often the thread looks at streams that move something: an error of theirs is noticed then,
// and what was let go without its being woken goes on.
constexpr std::chrono::milliseconds kLookAgain{1};
constexpr std::chrono::seconds kPatience{1};
constexpr std::chrono::milliseconds kProbeLimit{200};

// Where nothing is known, because the device is busy, copies are not submitted ahead: what goes
// wrong with that takes a kernel that is loaded at the wrong moment, with the other one a common
// engine.
Result<bool> choose_ahead(SubmissionMode mode, const PrimaryContext& context) {
  if (mode != SubmissionMode::kAutomatic) return mode == SubmissionMode::kAhead;
  Result<bool> blocks = blocks_at_head(context, Deadline::after(kProbeLimit));
  if (blocks.ok()) return !blocks.value();
  if (blocks.status().code() == StatusCode::kTimedOut) return false;
  return blocks.status();
}

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int ordinal, CudaDeviceOptions options) {
  Result<const Driver*> driver = Driver::get();
  if (!driver.ok()) return driver.status();
  Result<PrimaryContext> retained = PrimaryContext::retain(*driver.value(), ordinal);
  if (!retained.ok()) return retained.status();
  auto context = std::make_shared<const PrimaryContext>(std::move(retained.value()));
  Uuid uuid{};
  if (Status status = driver.value()->device_get_uuid(&uuid, context->device()); !status.ok()) {
    return status;
  }
  Result<FlagSegment*> flags = FlagSegment::of_process(*context);
  if (!flags.ok()) return flags.status();
  Result<const AccessTarget*> target = AccessTarget::of_device(*context);
  if (!target.ok()) return target.status();
  Result<bool> ahead = choose_ahead(options.submission, *context);
  if (!ahead.ok()) return ahead.status();
  return std::unique_ptr<CudaDevice>(new CudaDevice(ordinal, std::move(options), std::move(context),
                                                    *flags.value(), *target.value(), uuid,
                                                    ahead.value()));
}

CudaDevice::CudaDevice(int ordinal, CudaDeviceOptions options,
                       std::shared_ptr<const PrimaryContext> context, FlagSegment& flags,
                       const AccessTarget& target, const Uuid& uuid, bool submits_ahead)
    : ordinal_(ordinal),
      options_(std::move(options)),
      context_(std::move(context)),
      flags_(flags),
      access_target_(target),
      uuid_(uuid),
      submits_ahead_(submits_ahead),
      exported_(std::make_unique<ExportedMemory>(*context_)),
      host_buffers_(std::make_shared<HostBuffers>(context_)),
      pacer_(CopyPacer::kWindows, options_.aging.count()),
      thread_(std::make_unique<DriverThread>([this] { return work(); })) {}

CudaDevice::~CudaDevice() {
  for (DeviceLane* lane : all_lanes()) lane->interrupt();
  thread_.reset();
  if (settle()) return;
  // What still moves may write to words and through mappings at any time.
  for (auto& [link, lane] : lanes_) static_cast<void>(lane.release());
  for (auto& lane : all_host_lanes_) static_cast<void>(lane.release());
  for (FlagWord& word : queue_words_) word.keep_for_ever();
  static_cast<void>(exported_.release());
  static_cast<void>(new std::shared_ptr<const PrimaryContext>(context_));
}

// Whether all copies have come to their end.
bool CudaDevice::settle() {
  const Deadline deadline = Deadline::after(kPatience);
  bool drained = false;
  while (!drained) {
    drained = true;
    for (DeviceLane* lane : all_lanes()) {
      lane->abort();
      drained = drained && lane->drained();
    }
    if (!drained && (failed() || deadline.passed(now_ns()))) return false;
    if (!drained) usleep(200);
  }
  return true;
}

std::vector<DeviceLane*> CudaDevice::all_lanes() {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceLane*> all;
  for (const auto& [link, lane] : lanes_) all.push_back(lane.get());
  for (const auto& lane : all_host_lanes_) all.push_back(lane.get());
  return all;
}

DeviceLane& CudaDevice::lane(const std::shared_ptr<Link>& link) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<DeviceLane>& lane = lanes_[link.get()];
  if (lane == nullptr) lane = make_lane(link);
  return *lane;
}

std::unique_ptr<DeviceLane> CudaDevice::make_lane(const std::shared_ptr<Link>& link) {
  return std::make_unique<DeviceLane>(*context_, uuid_, access_target_, *exported_, flags_, link,
                                      [this](int level) { return make_queue(level); });
}

DeviceLane& CudaDevice::borrow_host_lane() {
  {
    const std::lock_guard lock(host_lanes_->mutex);
    if (std::vector<DeviceLane*>& free = host_lanes_->free; !free.empty()) {
      DeviceLane* const lane = free.back();
      free.pop_back();
      return *lane;
    }
  }
  const std::lock_guard lock(mutex_);
  all_host_lanes_.push_back(make_lane(nullptr));
  return *all_host_lanes_.back();
}

Result<std::unique_ptr<CopyQueue>> CudaDevice::make_queue(int level) {
  Result<FlagWord> go = flags_.take();
  Result<FlagWord> progress = flags_.take();
  if (!go.ok()) return go.status();
  if (!progress.ok()) return progress.status();
  const PinnedWord progress_word = progress.value().target().word;
  const ChunkOptions options{.chunk_bytes = options_.chunk_bytes};
  std::unique_ptr<CopyQueue> queue;
  if (submits_ahead_) {
    auto made = AheadCopyQueue::create(*context_, go.value().target().word, progress_word, options);
    if (!made.ok()) return made.status();
    queue = std::move(made.value());
  } else {
    auto made = ProxyCopyQueue::create(*context_, progress_word, options);
    if (!made.ok()) return made.status();
    queue = std::move(made.value());
  }
  pacer_.add(*queue, priority_of_level(level));
  const std::lock_guard lock(mutex_);
  queue_words_.push_back(std::move(go.value()));
  queue_words_.push_back(std::move(progress.value()));
  return queue;
}

Result<std::shared_ptr<CudaCall>> CudaDevice::begin(Stream stream, CallMemory memory) {
  if (failed()) return failure();
  CaptureStatus capture = CaptureStatus::kNone;
  {
    const CurrentContext current(*context_);
    if (!current.status().ok()) return current.status();
    if (Status status = context_->driver().stream_is_capturing(stream, &capture); !status.ok()) {
      return status;
    }
  }
  if (capture != CaptureStatus::kNone) {
    return Status::invalid_argument(
        "a CUDA graph is being captured on the current stream: these copies are started by the "
        "host each time and cannot be part of a graph");
  }
  Result<std::shared_ptr<CudaCall>> call = CudaCall::create(*this, std::move(memory));
  tell_gone();
  if (!call.ok()) return call;
  if (Status status = call.value()->mark_ready(stream); !status.ok()) return status;
  return call;
}

void CudaDevice::tell_gone() {
  const std::vector<uint64_t> gone = exported_->take_gone();
  if (gone.empty()) return;
  for (DeviceLane* lane : all_lanes()) {
    if (lane->link() != nullptr) lane->tell_gone(gone);
  }
}

void CudaDevice::submit(DeviceLane& lane, int level, Way way,
                        std::shared_ptr<Submission> submission) {
  lane.submit(level, way, std::move(submission));
  thread_->wake();
}

void CudaDevice::close(DeviceLane& lane, std::shared_ptr<Submission> submission) {
  lane.close(std::move(submission));
  thread_->wake();
}

void CudaDevice::pace(Nanoseconds now) {
  if (now == paced_) return;  // for another call
  paced_ = now;
  if (failed()) return count_round_since_failure();
  const uint32_t released = pacer_.step(now);
  if (released > 0 && !submits_ahead_) thread_->wake();
}

// A turn of the driver's thread.
std::chrono::nanoseconds CudaDevice::work() {
  bool busy = false;
  for (DeviceLane* lane : all_lanes()) {
    if (lane->link() != nullptr && lane->link()->failed()) lane->interrupt();
    Result<bool> worked = failed() ? Result<bool>(lane->work_off()) : lane->work();
    if (!worked.ok()) lose(worked.status());
    busy = busy || !worked.ok() || worked.value();
  }
  return busy ? std::chrono::nanoseconds(kLookAgain) : DriverThread::kUntilWoken;
}

void CudaDevice::heed(const Status& of_queue) {
  if (of_queue.code() == StatusCode::kSystem) lose(of_queue);
}

void CudaDevice::lose(const Status& why) {
  if (failed()) return;
  failure_ = why;
  failed_.store(true, std::memory_order_release);
  notify();
}

// Nothing is let go in order any more, but a stream that waits holds up whoever waits for the whole
// device. So everything goes, once all operations have failed and the peers were told: to them it
// looks like their messages. In a round before this one each was looked at after the failure. Not
// by the driver's thread: who waits for the device may hold the driver's lock. It makes no queues
// any more.
void CudaDevice::count_round_since_failure() {
  constexpr int kAllHaveFailed = 3;
  if (++rounds_since_failure_ != kAllHaveFailed) return;
  for (DeviceLane* lane : all_lanes()) lane->abort();
  thread_->wake();
}

}  // namespace freescale::cuda
