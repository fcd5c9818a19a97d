#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

namespace freescale::ucx {

// Messages in the order of their numbers, whatever the order in which they come. Numbers wrap.
template <typename Message>
class OrderedInbox {
 public:
  // Whether it makes one or more ready. One that came before is dropped.
  bool add(uint32_t number, Message message) {
    if (number != next_) {
      early_.emplace(number, std::move(message));
      return false;
    }
    ready_.push_back(std::move(message));
    advance();
    return true;
  }

  // The same for a message that need not be kept, as it has been taken if this says yes: it is the
  // next, and none waits before it.
  bool pass(uint32_t number) {
    if (number != next_ || !ready_.empty()) return false;
    advance();
    return true;
  }

  bool empty() const { return ready_.empty(); }
  // Not when empty().
  Message take() {
    Message message = std::move(ready_.front());
    ready_.pop_front();
    return message;
  }
  size_t early() const { return early_.size(); }

 private:
  // The next one is here; those that were ahead of their turn and follow it are, too.
  void advance() {
    ++next_;
    for (auto found = early_.find(next_); found != early_.end(); found = early_.find(next_)) {
      ready_.push_back(std::move(found->second));
      early_.erase(found);
      ++next_;
    }
  }

  uint32_t next_ = 0;
  std::deque<Message> ready_;
  std::map<uint32_t, Message> early_;
};

}  // namespace freescale::ucx
