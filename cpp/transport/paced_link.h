#pragma once

#include <array>
#include <memory>
#include <string>

#include "cpp/base/priority.h"
#include "cpp/transport/emulated_nic.h"
#include "cpp/transport/transport.h"

namespace freescale {

// A link that sends no faster than an emulated card of which this process has one for all its
// links; for experiments. Chunks wait for their time on the wire, records never do but count, and
// nothing is read directly. See docs/adr/0009-emulated-link-rate.md.
//
// The wire carries one chunk at a time, and which one is next is decided when it is free: by who
// asks first then. So priorities are the caller's, and an urgent chunk waits for one other at most.
class PacedLink : public Link {
 public:
  PacedLink(std::shared_ptr<Link> link, std::shared_ptr<EmulatedNic> nic);

  size_t max_record_bytes() const override { return link_->max_record_bytes(); }
  size_t chunk_bytes() const override { return link_->chunk_bytes(); }
  bool try_send(std::span<const std::byte> head, std::span<const Segment> body) override;
  bool prefers_chunks() const override { return nic_->interleaved_too_much(); }
  bool receive() override { return link_->receive(); }
  void set_chunk_sink(LinkSink& sink) override { link_->set_chunk_sink(sink); }
  bool poll_record(LinkSink& sink) override { return link_->poll_record(sink); }
  bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) override;
  uint64_t put_count() const override { return link_->put_count(); }
  bool has_read(uint64_t count) override { return link_->has_read(count); }
  void goes_on(int level) override;
  bool can_put(int level, size_t bytes) override;
  Nanoseconds retry_at() const override { return retry_at_; }
  bool poll_chunk(int level, LinkSink& sink) override { return link_->poll_chunk(level, sink); }
  void notify() override { link_->notify(); }
  void before_sleep() override { link_->before_sleep(); }
  bool can_pull() const override { return false; }
  Status pull(uint64_t from, std::byte* to, size_t bytes) override;
  void revoke() override { link_->revoke(); }
  uint64_t revocations() const override { return link_->revocations(); }
  uint64_t peer_revocations() const override { return link_->peer_revocations(); }
  std::string transport() const override { return "paced " + link_->transport(); }
  bool within_host() const override { return link_->within_host(); }
  std::string peer_name() const override { return link_->peer_name(); }

 private:
  // A level's way to its next chunk.
  struct Turn {
    enum class State { kIdle, kWaiting, kOnWire };
    State state = State::kIdle;
    Nanoseconds since = 0;  // waiting
    Nanoseconds again = 0;  // when the caller was to ask next
    Nanoseconds due = 0;    // when the chunk on the wire, or the one before, is out
    size_t bytes = 0;       // on the wire
  };
  static void begin(Turn& turn, Nanoseconds now);
  bool refuse(Turn& turn, Nanoseconds again);

  const std::shared_ptr<Link> link_;
  const std::shared_ptr<EmulatedNic> nic_;
  std::array<Turn, kPriorityLevels> turns_;
  Nanoseconds retry_at_ = kNoRetry;
};

}  // namespace freescale
