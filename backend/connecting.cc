// How a Backend comes to its members: at once, or with its first call.

#include <utility>

#include <c10/util/Exception.h>

#include "backend/backend.h"
#include "backend/device_reducer.h"
#include "backend/flight_dump.h"
#include "backend/interpreter.h"
#include "backend/store_adapter.h"

namespace freescale {
namespace {

// How many of the members run on this host, the own rank included.
int count_ranks_on_host(const std::vector<LinkReport>& links) {
  int count = 0;
  for (const LinkReport& link : links) {
    if (link.transport == "self" || link.transport == "shm") ++count;
  }
  return count;
}

// Tells those who connect to this rank, or will, and would wait for it.
void refuse(const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::string& why) {
  StoreAdapter adapter(store);
  Mesh::refuse(adapter, rank, why);
}

// Does a step of making the group; the other members learn if it fails.
template <typename Step>
auto or_refuse(const c10::intrusive_ptr<c10d::Store>& store, int rank, Step step) {
  try {
    return step();
  } catch (const std::exception& error) {
    refuse(store, rank, exception_text(error));
    throw;
  }
}

}  // namespace

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 const c10::intrusive_ptr<BackendOptions>& options)
    : c10d::Backend(rank, size),
      options_(c10::make_intrusive<BackendOptions>(*options)),
      store_(fresh_substore(store, rank)),
      environment_(or_refuse(store_, rank, Environment::read)),
      device_reducer_(or_refuse(
          store_, rank, [&] { return make_device_reducer(store_, rank, size, options_); })) {
  // Made here, where the environment may be refused, and not by a completion.
  or_refuse(store_, rank, [] { static_cast<void>(flight_recorder()); });
  members_.process =
      or_refuse(store_, rank, [&] { return ProcessEngine::acquire(*options_, environment_); });
  if (options_->eager) connect();
  init();
}

void Backend::connect() {
  std::lock_guard<std::mutex> one(connecting_);
  Members members;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    members = members_;
  }
  // Another thread did it, or closed the group.
  if (members.group != nullptr || members.process == nullptr) return;
  StoreAdapter adapter(store_);
  Result<Membership> joined =
      members.process->mesh().join(adapter, rank_, size_, Deadline::after(options_->timeout));
  if (!joined.ok()) {
    const Status& why = joined.status();
    std::lock_guard<std::mutex> lock(mutex_);
    members_ = {};
    close_reason_ = "the group could not be made: " + why.message();
    throw_status(Status(why.code(), "freescale: rank " + std::to_string(rank_) +
                                        ": making the group: " + why.message()));
  }
  Membership& membership = joined.value();
  members.group = std::make_shared<Group>(membership.group_id, options_->group_name, rank_,
                                          std::move(membership.links), environment_.first_sequence,
                                          options_->global_ranks_in_group);
  members.process->add_group(members.group, count_ranks_on_host(membership.reports));
  std::unique_lock<std::mutex> lock(mutex_);
  if (members_.process == nullptr) {  // closed meanwhile: the others hear of it
    const std::string reason = "freescale: rank " + std::to_string(rank_) + ": " + close_reason_;
    lock.unlock();
    return members.process->engine().close_group(*members.group, reason);
  }
  links_ = std::move(membership.reports);
  hosts_ = HostMap(std::move(membership.hosts));
  context_ = std::make_shared<GroupContext>(
      members.group, members.process, environment_,
      std::make_shared<FlightGroup>(FlightGroup{membership.group_id, options_->group_name, rank_,
                                                size_, options_->global_ranks_in_group}));
  members_ = std::move(members);
}

void Backend::refuse_to_connect(const std::string& reason) { refuse(store_, rank_, reason); }

std::vector<LinkReport> Backend::links() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return links_;
}

std::shared_ptr<GroupContext> Backend::context() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return context_;
}

}  // namespace freescale
