#include "cpp/transport/ucx/worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "cpp/base/service_thread.h"
#include "cpp/transport/ucx/ucp_settings.h"

namespace freescale::ucx {
namespace {

constexpr unsigned kMessageId = 1;
// How long the thread leaves progress to callers before it looks whether they still make it. They
// tell when they stop, but one that has nothing more in flight just stays away.
constexpr std::chrono::milliseconds kNap{1};
// Of one look, each of which may bring a chunk: what has come should be put where it belongs while
// it is still in the cache.
constexpr int kStepsAtOnce = 4;
// Buffers of messages that are kept for the next ones.
constexpr size_t kSpareBuffers = 64;

bool is_error(ucs_status_ptr_t request) { return UCS_PTR_IS_ERR(request); }

}  // namespace

HeldData::~HeldData() {
  if (worker_ == nullptr) return;
  if (copy_.empty()) {
    worker_->release(bytes_);
  } else {
    worker_->recycle(std::move(copy_));
  }
}

void HeldData::swap(HeldData& other) noexcept {
  std::swap(worker_, other.worker_);
  std::swap(copy_, other.copy_);  // the bytes stay where they are
  std::swap(bytes_, other.bytes_);
}

HeldData ArrivedData::hold() {
  if (bytes_.empty()) return {};
  kept_ = given_away_;
  std::shared_ptr<Worker> worker = worker_.shared_from_this();
  return kept_ ? HeldData(std::move(worker), bytes_)
               : HeldData(std::move(worker), worker_.copy_of(bytes_));
}

Result<std::shared_ptr<Worker>> Worker::create(Options options, MessageSink& sink) {
  Result<const UcpLibrary*> ucp = UcpLibrary::get(options.libraries);
  if (!ucp.ok()) return ucp.status();
  auto worker = std::shared_ptr<Worker>(new Worker(*ucp.value(), std::move(options), sink));
  if (Status status = worker->open(); !status.ok()) return status;
  return worker;
}

Status Worker::open() {
  Result<ucp_config_t*> config = read_settings(ucp_, options_.interfaces, options_.patience);
  if (!config.ok()) return config.status();
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
  parameters.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  // Not ucp_init(), which asks for the version of the headers: this is the oldest that will do.
  const ucs_status_t initialised =
      ucp_.ucp_init_version(1, 13, &parameters, config.value(), &context_);
  ucp_.ucp_config_release(config.value());
  if (initialised != UCS_OK) return ucp_.error("initialising UCX", initialised);
  ucp_worker_params_t how{};
  how.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  how.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const ucs_status_t made = ucp_.ucp_worker_create(context_, &how, &worker_); made != UCS_OK) {
    return ucp_.error("making a worker of UCX", made);
  }
  if (Status status = listen(); !status.ok()) return status;
  kick_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  return kick_.valid() ? Status() : Status::from_errno("eventfd", errno);
}

Status Worker::start() {
  try {
    thread_ = start_service_thread("freescale-ucx", [this] { run(); });
  } catch (const std::system_error& error) {
    return Status::from_errno("starting the thread of UCX", error.code().value());
  }
  return {};
}

Status Worker::listen() {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessageId;
  handler.cb = &Worker::on_received;
  handler.arg = this;
  // Not UCP_AM_FLAG_PERSISTENT_DATA, for which UCX copies before it knows that the data is kept.
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  const ucs_status_t set = ucp_.ucp_worker_set_am_recv_handler(worker_, &handler);
  if (set != UCS_OK) return ucp_.error("setting the receiver of messages", set);
  if (const ucs_status_t found = ucp_.ucp_worker_get_efd(worker_, &events_); found != UCS_OK) {
    return ucp_.error("getting UCX's descriptor", found);
  }
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  const ucs_status_t got = ucp_.ucp_worker_get_address(worker_, &address, &bytes);
  if (got != UCS_OK) return ucp_.error("getting the worker's address", got);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_.ucp_worker_release_address(worker_, address);
  return {};
}

Worker::~Worker() {
  stop();
  if (worker_ != nullptr) ucp_.ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_.ucp_cleanup(context_);
}

void Worker::stop() {
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wake();
  thread_.join();
}

Result<ucp_ep_h> Worker::open_endpoint(const std::string& address, EndpointEvents& events) {
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(address.data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = &Worker::on_endpoint_error;
  parameters.err_handler.arg = &events;
  const std::lock_guard lock(mutex_);
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t made = ucp_.ucp_ep_create(worker_, &parameters, &endpoint);
  if (made == UCS_OK) return endpoint;
  Status why = ucp_.error("connecting to its UCX address", made);
  // No way that both have, which may change: an interface comes up.
  return made == UCS_ERR_UNREACHABLE ? Status::peer_lost(why.message()) : why;
}

void Worker::close_endpoint(ucp_ep_h endpoint) {
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const std::lock_guard lock(mutex_);
  ucs_status_ptr_t request = ucp_.ucp_ep_close_nbx(endpoint, &parameters);
  if (request == nullptr || is_error(request)) return;
  // By force is soon, but only progress gets there.
  while (ucp_.ucp_request_check_status(request) == UCS_INPROGRESS) {
    ucp_.ucp_worker_progress(worker_);
  }
  ucp_.ucp_request_free(request);
}

std::vector<std::string> Worker::routes(ucp_ep_h endpoint) const {
  constexpr unsigned kMost = 8;
  ucp_transport_entry_t entries[kMost] = {};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports.entries = entries;
  attributes.transports.num_entries = kMost;
  attributes.transports.entry_size = sizeof(entries[0]);
  const std::lock_guard lock(mutex_);
  if (ucp_.ucp_ep_query(endpoint, &attributes) != UCS_OK) return {};
  std::vector<std::string> names;
  for (unsigned i = 0; i < std::min(attributes.transports.num_entries, kMost); ++i) {
    std::string name = std::string(entries[i].transport_name) + "/" + entries[i].device_name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

Status Worker::send(ucp_ep_h endpoint, std::span<const std::byte> header,
                    std::span<const Segment> body, EndpointEvents& events, uint64_t puts) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Sending> sending;
  if (spare_sendings_.empty()) {
    sending = std::make_unique<Sending>();
  } else {
    sending = std::move(spare_sendings_.back());
    spare_sendings_.pop_back();
  }
  sending->worker = this;
  sending->events = &events;
  sending->header.assign(header.begin(), header.end());
  sending->bytes = total_bytes(body);
  sending->puts = puts;
  const bool lent = puts != 0 && body.size() == 1;
  sending->copy.clear();
  for (const Segment& piece : body) {
    if (!lent) sending->copy.insert(sending->copy.end(), piece.data, piece.data + piece.bytes);
  }
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  parameters.cb.send = &Worker::on_send_over;
  parameters.user_data = sending.get();
  const ucs_status_ptr_t request =
      ucp_.ucp_am_send_nbx(endpoint, kMessageId, sending->header.data(), sending->header.size(),
                           lent ? body[0].data : sending->copy.data(), sending->bytes, &parameters);
  if (is_error(request)) {
    const Status why = ucp_.error("sending", UCS_PTR_STATUS(request));
    events.on_error(why.message());
    return why;
  }
  static_cast<void>(sending.release());  // on_send_over() has it
  return {};
}

void Worker::on_send_over(void* request, ucs_status_t, void* user_data) {
  std::unique_ptr<Sending> sending(static_cast<Sending*>(user_data));
  Worker& worker = *sending->worker;
  worker.ucp_.ucp_request_free(request);
  // A failure is the endpoint's, which tells of it.
  sending->events->on_sent(sending->bytes, sending->puts);
  if (worker.spare_sendings_.size() < kSpareBuffers) {
    worker.spare_sendings_.push_back(std::move(sending));
  }
}

ucs_status_t Worker::on_received(void* self, const void* header, size_t header_bytes, void* data,
                                 size_t bytes, const ucp_am_recv_param_t* parameters) {
  auto& worker = *static_cast<Worker*>(self);
  const std::span<const std::byte> head(static_cast<const std::byte*>(header), header_bytes);
  ArrivedData body(worker, {static_cast<const std::byte*>(data), bytes},
                   (parameters->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0);
  worker.sink_.on_message(head, body);
  return body.kept() ? UCS_INPROGRESS : UCS_OK;
}

void Worker::on_endpoint_error(void* events, ucp_ep_h, ucs_status_t status) {
  // The library's own text: the table is not at hand here, and there is one library.
  static_cast<EndpointEvents*>(events)->on_error(
      status == UCS_ERR_CONNECTION_RESET
          ? "has died or was cut off: the connection was reset"
          : "was lost: the connection failed (UCX error " + std::to_string(status) + ")");
}

// With the lock. A new vector of a chunk's size would be memory of the system's each time.
std::vector<std::byte> Worker::copy_of(std::span<const std::byte> bytes) {
  std::vector<std::byte> copy;
  if (!spare_copies_.empty()) {
    copy = std::move(spare_copies_.back());
    spare_copies_.pop_back();
  }
  copy.assign(bytes.begin(), bytes.end());
  return copy;
}

void Worker::recycle(std::vector<std::byte> copy) {
  const std::lock_guard lock(mutex_);
  if (spare_copies_.size() < kSpareBuffers) spare_copies_.push_back(std::move(copy));
}

void Worker::release(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  ucp_.ucp_am_data_release(worker_, const_cast<std::byte*>(bytes.data()));
}

bool Worker::progress() {
  int steps = 0;
  while (steps < kStepsAtOnce && ucp_.ucp_worker_progress(worker_) != 0) ++steps;
  return steps != 0;
}

bool Worker::poll() {
  polled_.store(true, std::memory_order_relaxed);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  polling_ = true;
  // One step, so that the credit of a chunk goes back before the next one is taken.
  const bool any = ucp_.ucp_worker_progress(worker_) != 0;
  polling_ = false;
  sink_.on_polled();
  return any;
}

void Worker::hand_over() {
  if (polled_.exchange(false)) wake();
}

void Worker::wake() {
  const uint64_t one = 1;
  static_cast<void>(write(kick_.get(), &one, sizeof(one)) == sizeof(one));
}

bool Worker::progress_until(const std::function<bool()>& done, Deadline deadline) {
  while (!done()) {
    if (deadline.passed(now_ns())) return false;
    const std::unique_lock lock(mutex_);
    if (!progress()) usleep(50);
  }
  return true;
}

void Worker::run() {
  while (!stopping_.load()) {
    bool busy = false;
    {
      const std::lock_guard lock(mutex_);
      busy = progress();
    }
    if (options_.service) options_.service();
    if (!busy) sleep();
  }
}

// Until something happens, or it is time to look.
void Worker::sleep() {
  timespec patience{};
  const bool callers_poll = polled_.exchange(false);
  pollfd waited[] = {{kick_.get(), POLLIN, 0}, {events_, POLLIN, 0}};
  if (callers_poll) {
    patience.tv_nsec = std::chrono::nanoseconds(kNap).count();
  } else {
    const std::lock_guard lock(mutex_);
    if (ucp_.ucp_worker_arm(worker_) != UCS_OK) return;  // something has happened meanwhile
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(options_.service_interval);
    patience.tv_sec = seconds.count();
    patience.tv_nsec = (options_.service_interval - seconds).count();
  }
  if (ppoll(waited, callers_poll ? 1 : 2, &patience, nullptr) <= 0) return;
  uint64_t kicks = 0;
  if (waited[0].revents != 0) static_cast<void>(read(kick_.get(), &kicks, sizeof(kicks)));
}

}  // namespace freescale::ucx
