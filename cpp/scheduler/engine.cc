#include "cpp/scheduler/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "cpp/base/cpu_relax.h"
#include "cpp/scheduler/protocol.h"

namespace freescale {
namespace {

// With more ranks than cores a thread that waits gives the core away this often before it sleeps: a
// yield costs a fraction of a sleep and a wake.
constexpr int kYields = 64;

}  // namespace

// Threads and locks around the Protocol. Three rules (docs/threading.md):
//   1. The Protocol is touched only under progress_mutex_, which nobody holds while asleep or while
//      on_done runs.
//   2. Whoever leaves while operations are open makes sure that the engine thread is awake.
//   3. Nobody sleeps on work that came between the last look and the sleep: the Doorbell's ticket
//      is taken before the last look, and submitters ring after they have queued.
class EngineCore {
 public:
  EngineCore(EngineOptions options, Doorbell& doorbell);
  ~EngineCore();

  void add_group(std::shared_ptr<Group> group);
  void submit(Request request);
  bool wait(Completion& completion, Deadline deadline);
  // Runs `change` on the protocol as soon as the lock is free.
  template <typename Change>
  void alter(Change change);
  void set_oversubscribed(bool oversubscribed);

  Statistics statistics;

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool progress();
  void take_submissions();
  void run_finished(Lock& lock);
  void leave(Lock& lock);
  void wake_engine() { doorbell_.ring_always(Doorbell::kEngine); }
  void sleep(Lock& lock, uint32_t who, Deadline deadline, const Completion* completion);
  bool look_once_more(Lock& lock, const Completion* completion);
  void relax(int idle_rounds);
  bool tired(int idle_rounds, Nanoseconds idle_since) const;
  void run();

  const EngineOptions options_;
  Doorbell& doorbell_;
  std::atomic<bool> oversubscribed_;

  std::mutex progress_mutex_;  // guards protocol_
  Protocol protocol_;

  std::mutex submit_mutex_;  // guards submitted_; nothing else is taken under it
  std::vector<std::unique_ptr<Operation>> submitted_;
  std::atomic<bool> has_submissions_{false};

  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

EngineCore::EngineCore(EngineOptions options, Doorbell& doorbell)
    : options_(options),
      doorbell_(doorbell),
      oversubscribed_(options.oversubscribed),
      protocol_(options.aging, statistics) {
  protocol_.set_pull(options.oversubscribed);
  // Signals belong to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread_.native_handle(), "freescale-eng");
}

EngineCore::~EngineCore() {
  {
    Lock lock(progress_mutex_);
    take_submissions();
    protocol_.close_all("the engine was shut down");
    run_finished(lock);
  }
  stopping_.store(true, std::memory_order_seq_cst);
  wake_engine();
  thread_.join();
}

void EngineCore::add_group(std::shared_ptr<Group> group) {
  alter([&](Protocol& protocol) { protocol.add_group(*group); });
}

template <typename Change>
void EngineCore::alter(Change change) {
  Lock lock(progress_mutex_);
  take_submissions();
  change(protocol_);
  protocol_.notify_peers();
  run_finished(lock);
  leave(lock);
}

void EngineCore::set_oversubscribed(bool oversubscribed) {
  oversubscribed_.store(oversubscribed, std::memory_order_relaxed);
  alter([&](Protocol& protocol) { protocol.set_pull(oversubscribed); });
}

void EngineCore::submit(Request request) {
  const bool caller_waits = request.caller_waits;
  auto operation = std::make_unique<Operation>();
  operation->request = std::move(request);
  {
    std::lock_guard<std::mutex> lock(submit_mutex_);
    submitted_.push_back(std::move(operation));
  }
  has_submissions_.store(true, std::memory_order_seq_cst);
  if (caller_waits) return;
  Lock lock(progress_mutex_, std::try_to_lock);
  // Whoever holds the lock looks at the queue between two chunks, and again before it leaves.
  if (!lock.owns_lock()) return;
  take_submissions();
  protocol_.poll_records();
  protocol_.notify_peers();
  run_finished(lock);
  leave(lock);
}

void EngineCore::take_submissions() {
  if (!has_submissions_.load(std::memory_order_acquire)) return;
  std::vector<std::unique_ptr<Operation>> taken;
  {
    std::lock_guard<std::mutex> lock(submit_mutex_);
    taken.swap(submitted_);
    has_submissions_.store(false, std::memory_order_relaxed);
  }
  for (auto& operation : taken) protocol_.post(std::move(operation));
}

// One round under the lock; whether anything moved.
bool EngineCore::progress() {
  take_submissions();
  const bool records = protocol_.poll_records();
  const bool chunks = protocol_.move_chunks();
  protocol_.notify_peers();
  return records || chunks;
}

// Runs what completed, without the lock. Holds it again afterwards, or not if another thread was
// quicker.
void EngineCore::run_finished(Lock& lock) {
  while (lock.owns_lock() && protocol_.has_finished()) {
    std::vector<Protocol::Finished> finished = protocol_.take_finished();
    lock.unlock();
    for (Protocol::Finished& one : finished) {
      if (one.on_done) one.on_done(one.result);
    }
    // Its caller may sleep on the doorbell.
    if (doorbell_.caller_waits()) doorbell_.ring_always(Doorbell::kCaller);
    static_cast<void>(lock.try_lock());
  }
}

// Gives the lock back. Work that stays open goes to the engine thread.
void EngineCore::leave(Lock& lock) {
  if (!lock.owns_lock()) return;
  const bool open = !protocol_.idle();
  lock.unlock();
  if (open || has_submissions_.load(std::memory_order_seq_cst)) wake_engine();
}

bool EngineCore::wait(Completion& completion, Deadline deadline) {
  int idle_rounds = 0;
  Nanoseconds idle_since = 0;
  Lock lock(progress_mutex_, std::defer_lock);
  while (!completion.is_set()) {
    if (deadline.passed(now_ns())) break;
    if (!lock.owns_lock() && !lock.try_lock()) {
      // Another thread moves bytes, ours too. Look again soon in case it leaves.
      completion.sleep(std::min<int64_t>(deadline.left().count(), 1'000'000));
      continue;
    }
    if (progress()) {
      run_finished(lock);
      idle_rounds = 0;
      continue;
    }
    run_finished(lock);
    if (!lock.owns_lock() || completion.is_set()) continue;
    if (idle_rounds++ == 0) idle_since = now_ns();
    if (!tired(idle_rounds, idle_since)) {
      relax(idle_rounds);
    } else {
      sleep(lock, Doorbell::kCaller, deadline, &completion);
    }
  }
  leave(lock);
  return completion.is_set();
}

void EngineCore::relax(int idle_rounds) {
  if (oversubscribed_.load(std::memory_order_relaxed) || idle_rounds % 1024 == 0) {
    sched_yield();
  } else {
    cpu_relax();
  }
}

bool EngineCore::tired(int idle_rounds, Nanoseconds idle_since) const {
  if (oversubscribed_.load(std::memory_order_relaxed)) return idle_rounds > kYields;
  return now_ns() - idle_since > options_.spin.count();
}

// Between taking the ticket and sleeping: is there really nothing to do?
bool EngineCore::look_once_more(Lock& lock, const Completion* completion) {
  const bool moved = progress();
  protocol_.check_deadlines(now_ns());
  const bool finished = protocol_.has_finished();
  run_finished(lock);
  return moved || finished || !lock.owns_lock() || has_submissions_.load() ||
         (completion != nullptr && completion->is_set()) || stopping_.load();
}

// Gives the lock away, sleeps until rung or until the next deadline, and takes the lock again if it
// is free.
void EngineCore::sleep(Lock& lock, uint32_t who, Deadline deadline, const Completion* completion) {
  // An idle engine is not woken by messages for operations that this rank has not called yet.
  const bool wants_events = who == Doorbell::kCaller || !protocol_.idle();
  const uint32_t ticket = doorbell_.prepare(who, wants_events);
  if (!look_once_more(lock, completion)) {
    const Deadline until = std::min(deadline, protocol_.earliest_deadline());
    lock.unlock();
    doorbell_.sleep(ticket, who, until.is_never() ? -1 : until.left().count());
  }
  if (wants_events) doorbell_.finish(who);
  if (!lock.owns_lock()) static_cast<void>(lock.try_lock());
}

void EngineCore::run() {
  int idle_rounds = 0;
  Nanoseconds idle_since = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint32_t ticket = doorbell_.prepare(Doorbell::kEngine, false);
    Lock lock(progress_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) {
      // A caller is at it, and wakes this thread when it leaves something open.
      if (!stopping_.load()) doorbell_.sleep(ticket, Doorbell::kEngine, -1);
      continue;
    }
    while (lock.owns_lock() && !stopping_.load(std::memory_order_acquire)) {
      if (progress()) {
        run_finished(lock);
        idle_rounds = 0;
        continue;
      }
      run_finished(lock);
      if (!lock.owns_lock()) break;
      if (idle_rounds++ == 0) idle_since = now_ns();
      if (!protocol_.idle() && !tired(idle_rounds, idle_since)) {
        relax(idle_rounds);
      } else {
        sleep(lock, Doorbell::kEngine, Deadline::never(), nullptr);
        idle_rounds = 0;
      }
    }
  }
}

Engine::Engine(EngineOptions options, Doorbell& doorbell)
    : core_(std::make_unique<EngineCore>(options, doorbell)) {}
Engine::~Engine() = default;

void Engine::add_group(std::shared_ptr<Group> group) { core_->add_group(std::move(group)); }
void Engine::submit(Request request) { core_->submit(std::move(request)); }
bool Engine::wait(Completion& completion, Deadline deadline) {
  return core_->wait(completion, deadline);
}
void Engine::reject(Group& group, uint64_t sequence, OpKind op, const std::string& reason) {
  core_->alter([&](Protocol& protocol) { protocol.reject(group, sequence, op, reason); });
}
void Engine::close_group(Group& group, const std::string& reason) {
  core_->alter([&](Protocol& protocol) { protocol.close_group(group, reason); });
}
void Engine::set_oversubscribed(bool oversubscribed) { core_->set_oversubscribed(oversubscribed); }
Statistics& Engine::statistics() { return core_->statistics; }

}  // namespace freescale
