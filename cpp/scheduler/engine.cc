#include "cpp/scheduler/engine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cpp/base/cpu_relax.h"
#include "cpp/base/futex.h"
#include "cpp/base/service_thread.h"
#include "cpp/scheduler/protocol.h"

namespace freescale {
namespace {

// With more ranks than cores a thread that waits gives the core away this often before it sleeps: a
// yield costs a fraction of a sleep and a wake.
constexpr int kYields = 64;

// The engine whose completions this thread runs just now. What they submit is taken up afterwards:
// at once, a chain of operations that end immediately (in a group of one rank) would nest on the
// stack without bound.
thread_local const EngineCore* completing = nullptr;

// How many links of a chain of operations that end immediately submit() follows itself.
constexpr int kChainedInSubmit = 64;

// How long the end of an engine waits for copies of operations that have failed.
constexpr std::chrono::milliseconds kPatienceWithDevices{500};

// How many rounds of progress (of at most a chunk or so each) go between two looks at the clock.
constexpr unsigned kRoundsPerClock = 64;

}  // namespace

// Threads and locks around the Protocol. The rules (docs/threading.md):
//   1. The Protocol is touched only under progress_mutex_, which nobody holds while asleep or while
//      on_done runs.
//   2. While a caller is inside wait(), callers move the bytes and the engine thread stands back:
//      two threads of one rank that take turns cost a switch for each message (measured: 2-3 times
//      the time of exchanges up to 4 MiB). One caller moves them, further ones queue.
//   3. Whoever leaves while operations are open makes sure that somebody else is awake.
//   4. Nobody sleeps on work that came between the last look and the sleep: the Doorbell's ticket
//      is taken before the last look, and whoever makes work rings afterwards.
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
  void serve(Lock& lock, const Completion& completion, Deadline deadline);
  void await_turn(Lock& lock, const Completion& completion, Deadline deadline);
  void call_next();
  void leave(Lock& lock);
  void wake_someone();
  void wake_engine() { doorbell_.ring_always(Doorbell::kEngine); }
  void stand_back(Lock& lock);
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
  unsigned rounds_ = 0;  // under progress_mutex_ too

  std::mutex submit_mutex_;  // guards submitted_; nothing else is taken under it
  std::vector<std::unique_ptr<Operation>> submitted_;
  std::atomic<bool> has_submissions_{false};

  std::atomic<int> callers_{0};         // inside wait()
  std::atomic<int> queued_callers_{0};  // of those, asleep until their turn or their completion
  std::atomic<uint32_t> turns_{0};      // what they sleep on
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

EngineCore::EngineCore(EngineOptions options, Doorbell& doorbell)
    : options_(options),
      doorbell_(doorbell),
      oversubscribed_(options.oversubscribed),
      protocol_(options.aging, statistics) {
  thread_ = start_service_thread("freescale-eng", [this] { run(); });
}

EngineCore::~EngineCore() {
  Lock lock(progress_mutex_, std::defer_lock);
  do {  // again if an on_done has started something
    if (!lock.owns_lock()) lock.lock();
    take_submissions();
    protocol_.close_all("the engine was shut down");
    run_finished(lock);
  } while (!lock.owns_lock() || has_submissions_.load() || protocol_.has_operations());
  const Deadline patience = Deadline::after(kPatienceWithDevices);
  while (!protocol_.idle() && !patience.passed(now_ns())) {
    if (!progress()) usleep(100);
    run_finished(lock);
    if (!lock.owns_lock()) lock.lock();
  }
  protocol_.keep_leftovers_for_ever();
  lock.unlock();
  stopping_.store(true, std::memory_order_seq_cst);
  wake_engine();
  thread_.join();
}

void EngineCore::add_group(std::shared_ptr<Group> group) {
  alter([&](Protocol& protocol) { protocol.add_group(group); });
}

template <typename Change>
void EngineCore::alter(Change change) {
  Lock lock(progress_mutex_);
  take_submissions();
  // At once, as wherever operations are taken up: what the first look at one finds came before it.
  protocol_.poll_records();
  change(protocol_);
  protocol_.notify_peers();
  run_finished(lock);
  leave(lock);
}

void EngineCore::set_oversubscribed(bool oversubscribed) {
  oversubscribed_.store(oversubscribed, std::memory_order_relaxed);
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
  if (caller_waits || completing == this) return;
  Lock lock(progress_mutex_, std::try_to_lock);
  // Whoever holds the lock looks at the queue between two chunks, and again before it leaves. A
  // chain of operations goes on elsewhere after a while: a caller that does not wait wants to come
  // back.
  const auto pending = [&] { return has_submissions_.load(std::memory_order_acquire); };
  for (int i = 0; i < kChainedInSubmit && lock.owns_lock() && pending(); ++i) {
    take_submissions();
    protocol_.poll_records();
    protocol_.notify_peers();
    run_finished(lock);
  }
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
  if (++rounds_ % kRoundsPerClock == 0) protocol_.check_deadlines(now_ns());
  const bool records = protocol_.poll_records();
  const bool chunks = protocol_.move_chunks();
  const bool devices = protocol_.poll_devices();
  protocol_.notify_peers();
  return records || chunks || devices;
}

// Runs what completed, without the lock. Holds it again afterwards, or not if another thread was
// quicker.
void EngineCore::run_finished(Lock& lock) {
  while (lock.owns_lock() && protocol_.has_finished()) {
    std::vector<Protocol::Finished> finished = protocol_.take_finished();
    lock.unlock();
    const EngineCore* outer = std::exchange(completing, this);
    for (Protocol::Finished& one : finished) {
      if (one.on_done) one.on_done(one.result);
    }
    completing = outer;
    // Whoever waits for one of these may be asleep.
    call_next();
    if (doorbell_.caller_waits()) doorbell_.ring_always(Doorbell::kCaller);
    static_cast<void>(lock.try_lock());
  }
}

// Gives the lock back. Work that stays open goes to somebody else.
void EngineCore::leave(Lock& lock) {
  if (!lock.owns_lock()) return;
  const bool open = !protocol_.idle();
  lock.unlock();
  call_next();
  if (open || has_submissions_.load(std::memory_order_seq_cst)) wake_someone();
}

void EngineCore::wake_someone() {
  if (doorbell_.caller_waits()) {
    doorbell_.ring_always(Doorbell::kCaller);
  } else if (callers_.load(std::memory_order_seq_cst) == 0) {
    wake_engine();
  }  // otherwise a caller is awake and on its way to the lock
}

bool EngineCore::wait(Completion& completion, Deadline deadline) {
  if (completion.is_set()) return true;
  callers_.fetch_add(1);
  Lock lock(progress_mutex_, std::defer_lock);
  while (!completion.is_set() && !deadline.passed(now_ns())) {
    if (lock.owns_lock() || lock.try_lock()) {
      serve(lock, completion, deadline);
    } else {
      await_turn(lock, completion, deadline);
    }
  }
  const bool last = callers_.fetch_sub(1) == 1;
  if (lock.owns_lock()) {
    leave(lock);
  } else if (last) {
    wake_engine();  // it may have stood back for this caller
  }
  return completion.is_set();
}

// Moves bytes until the completion is set, the deadline passed, or another thread has the lock.
void EngineCore::serve(Lock& lock, const Completion& completion, Deadline deadline) {
  int idle_rounds = 0;
  Nanoseconds idle_since = 0;
  unsigned rounds = 0;
  while (lock.owns_lock() && !completion.is_set()) {
    if (++rounds % kRoundsPerClock == 0 && deadline.passed(now_ns())) break;
    const bool moved = progress();
    run_finished(lock);
    if (moved) {
      idle_rounds = 0;
      continue;
    }
    if (!lock.owns_lock() || completion.is_set()) break;
    if (idle_rounds++ == 0) idle_since = now_ns();
    if (!tired(idle_rounds, idle_since)) {
      relax(idle_rounds);
    } else {
      sleep(lock, Doorbell::kCaller, deadline, &completion);
      if (deadline.passed(now_ns())) break;
    }
  }
}

// Another thread holds the lock. Sleeps until it gives the lock up, which the engine thread does
// after at most one chunk; a serving caller keeps it, but does this caller's work as well. Not a
// yield: the scheduler prefers the thread that ran less, so a yielding caller would keep the core
// from an engine thread that holds the lock, for whole time slices (measured: 6 ms).
void EngineCore::await_turn(Lock& lock, const Completion& completion, Deadline deadline) {
  const uint32_t turn = turns_.load(std::memory_order_acquire);
  queued_callers_.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!completion.is_set() && !lock.try_lock()) {
    futex_wait(turns_, turn, deadline.is_never() ? -1 : deadline.left().count());
  }
  queued_callers_.fetch_sub(1);
}

// After the lock was given up. Not by the doorbell: that would keep the thread itself from falling
// asleep, and it would take the lock again before the one it has called.
void EngineCore::call_next() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (queued_callers_.load() == 0) return;
  turns_.fetch_add(1, std::memory_order_acq_rel);
  futex_wake_all(turns_);
}

void EngineCore::relax(int idle_rounds) {
  if (oversubscribed_.load(std::memory_order_relaxed) || idle_rounds % 1024 == 0) {
    sched_yield();
  } else {
    cpu_relax();
  }
}

bool EngineCore::tired(int idle_rounds, Nanoseconds idle_since) const {
  // What waits for its time is not to be had sooner by looking.
  if (!protocol_.retry_at().is_never()) return true;
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

// Gives the lock away, sleeps until rung or until there is something to do at a known time, and
// takes the lock again if it is free.
void EngineCore::sleep(Lock& lock, uint32_t who, Deadline deadline, const Completion* completion) {
  // An idle engine is not woken by messages for operations that this rank has not called yet.
  const bool wants_events = who == Doorbell::kCaller || !protocol_.idle();
  const uint32_t ticket = doorbell_.prepare(who, wants_events);
  if (!look_once_more(lock, completion)) {
    const Deadline until =
        std::min({deadline, protocol_.earliest_deadline(), protocol_.retry_at()});
    protocol_.before_sleep();
    lock.unlock();
    call_next();
    // Who found the lock taken since the last look, and left, relies on this one.
    if (!has_submissions_.load(std::memory_order_seq_cst)) {
      doorbell_.sleep(ticket, who, until.is_never() ? -1 : until.left().count());
    }
  }
  if (wants_events) doorbell_.finish(who);
  if (!lock.owns_lock()) static_cast<void>(lock.try_lock());
}

// Leaves the field to the callers inside wait().
void EngineCore::stand_back(Lock& lock) {
  lock.unlock();
  call_next();
  if (doorbell_.caller_waits()) doorbell_.ring_always(Doorbell::kCaller);
  // The ticket comes after the ring, which would keep this thread awake, and before the look at
  // the callers: the last of them wakes it.
  const uint32_t ticket = doorbell_.prepare(Doorbell::kEngine, false);
  if (callers_.load() == 0 || stopping_.load()) return;
  doorbell_.sleep(ticket, Doorbell::kEngine, -1);
}

void EngineCore::run() {
  int idle_rounds = 0;
  Nanoseconds idle_since = 0;
  Lock lock(progress_mutex_, std::defer_lock);
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!lock.owns_lock()) {
      const uint32_t ticket = doorbell_.prepare(Doorbell::kEngine, false);
      if (!lock.try_lock()) {
        // Whoever has it wakes this thread when something stays open.
        if (!stopping_.load()) doorbell_.sleep(ticket, Doorbell::kEngine, -1);
        continue;
      }
    }
    const bool moved = progress();
    run_finished(lock);
    if (!lock.owns_lock()) continue;
    if (callers_.load() > 0) {
      stand_back(lock);
    } else if (moved) {
      idle_rounds = 0;
    } else if (idle_rounds++ == 0) {
      idle_since = now_ns();
    } else if (!protocol_.idle() && !tired(idle_rounds, idle_since)) {
      relax(idle_rounds);
    } else {
      sleep(lock, Doorbell::kEngine, Deadline::never(), nullptr);
      idle_rounds = 0;
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
std::vector<OpenOperation> Engine::open_operations() {
  std::vector<OpenOperation> open;
  core_->alter([&](Protocol& protocol) { open = protocol.open_operations(); });
  return open;
}
Statistics& Engine::statistics() { return core_->statistics; }

}  // namespace freescale
