#pragma once

#include <string>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cpp/rendezvous/key_value_store.h"

namespace freescale {

// The part of `store` that belongs to one making of one group. A store outlives the groups made
// with it, and torch uses a group's name again after destroy_process_group(): this part is new each
// time, so that no key of a former life is read. Every member must call it once per making.
c10::intrusive_ptr<c10d::Store> fresh_substore(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank);

// A torch store as rendezvous wants it.
class StoreAdapter final : public KeyValueStore {
 public:
  explicit StoreAdapter(const c10::intrusive_ptr<c10d::Store>& store) : store_(store) {}

  Status set(const std::string& key, const std::string& value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  // Whether the key turned up before the deadline.
  bool poll(const std::string& key, Deadline deadline);

  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace freescale
