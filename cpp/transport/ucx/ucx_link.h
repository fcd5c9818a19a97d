#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cpp/base/priority.h"
#include "cpp/transport/transport.h"
#include "cpp/transport/ucx/chunk_window.h"
#include "cpp/transport/ucx/messages.h"
#include "cpp/transport/ucx/ordered_inbox.h"
#include "cpp/transport/ucx/ucp_settings.h"
#include "cpp/transport/ucx/worker.h"

namespace freescale::ucx {

// A peer that was not heard for so many heartbeats is lost.
constexpr int kSilentHeartbeats = 3;

// How a link tells its owner's threads.
struct Wakers {
  std::function<void()> arrived;  // who waits for messages, or for the end of puts
  std::function<void()> all;      // everybody: there is room again, or the link has failed
};

// A link over the network, by UCX's active messages. The receiver itself puts what comes where it
// belongs: a sender that was given up can never write into memory that the receiver has let go of,
// as a late put could. That is at once when receive() finds a chunk, and when it is polled for
// otherwise, as for what the worker's thread finds, which must not touch what the engine has.
// Chunks are bounded by windows (ChunkWindow), records by the protocol above.
class UcxLink final : public Link, private EndpointEvents {
 public:
  // `key` names the link to the peer.
  UcxLink(std::shared_ptr<Worker> worker, uint64_t key, std::string peer_name, Wakers wakers);
  ~UcxLink() override { close(); }

  // The way to the peer's worker; before anything is sent.
  Status open(const std::string& address);
  // Once the peer has told them. Until then it has the name that this end was made with.
  void set_peer(uint64_t key, std::string name);
  uint64_t key() const { return key_; }
  uint64_t peer_key() const { return peer_key_; }
  // Over which transports and devices.
  std::string route() const;

  // A message to the peer outside of the lanes.
  Status send_control(MessageKind kind, std::span<const std::byte> body, uint64_t to_key);
  // With the worker's lock held. Whether it was a chunk that is in its place now.
  bool on_message(const MessageHeader& header, ArrivedData& data);
  // For all chunks that are taken, unless more wait. Of the holder of the progress lock.
  void return_credits();
  // Sends a heartbeat if nothing else was sent for `interval`; fails if nothing came for
  // kSilentHeartbeats of them.
  void keep_alive(Nanoseconds now, Nanoseconds interval);
  void tell_given_up(const std::string& why);
  // Says goodbye; nothing is sent any more.
  void say_goodbye();
  // Whether the peer, which lives, may still lack something that was sent. TCP throws away what it
  // has not delivered when something comes for a socket that is closed.
  bool awaits_farewell() const { return awaits_farewell_.load() && !failed(); }
  // Afterwards UCX knows nothing of this object any more. Not while anything is being sent.
  void close();

  size_t max_record_bytes() const override { return kRecordBytes; }
  size_t chunk_bytes() const override { return chunk_bytes_; }
  bool try_send(std::span<const std::byte> head, std::span<const Segment> body) override;
  bool receive() override { return worker_->poll(); }
  void set_chunk_sink(LinkSink& sink) override { sink_ = &sink; }
  bool poll_record(LinkSink& sink) override;
  bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) override;
  bool can_put(int level, size_t bytes) override;
  uint64_t put_count() const override { return puts_; }
  bool has_read(uint64_t count) override { return read_.load() >= count; }
  bool poll_chunk(int level, LinkSink& sink) override;
  // UCX sends what it is given.
  void notify() override {}
  void before_sleep() override { worker_->hand_over(); }
  bool can_pull() const override { return false; }
  Status pull(uint64_t from, std::byte* to, size_t bytes) override;
  // Nothing here ever reads or writes the peer's memory.
  void revoke() override {}
  uint64_t revocations() const override { return 0; }
  uint64_t peer_revocations() const override { return 0; }
  std::string transport() const override { return "ucx"; }
  bool within_host() const override { return false; }
  std::string peer_name() const override;

 private:
  static constexpr size_t kRecordBytes = 16 << 10;
  // While more chunks wait to be taken, the peer is told that some were after so many bytes.
  static constexpr size_t kCreditEvery = 4 * kChunkBytes;
  // Records that wait for the network, in bytes; beyond them the sender waits.
  static constexpr size_t kMostUnsent = 256 << 10;
  // Messages ahead of their turn; a peer that has more of them is mad.
  static constexpr size_t kMostEarly = 4096;

  struct Chunk {
    ChunkTag tag;
    HeldData data;
  };

  void on_error(const std::string& why) override;
  void on_sent(size_t bytes, uint64_t puts) override;
  Status send(const MessageHeader& header, std::span<const Segment> body, uint64_t puts = 0);
  bool on_chunk(const MessageHeader& header, ArrivedData& data);
  bool place(const MessageHeader& header, const ArrivedData& data);
  void keep_chunk(const MessageHeader& header, ArrivedData& data);
  void on_record(const MessageHeader& header, ArrivedData& data);
  void on_credit(const MessageHeader& header);
  void note_read(uint64_t puts);
  void take_credits();
  void note_taken(int level, size_t bytes, bool last);
  void return_credit(int level);
  void note_received();
  void on_goodbye(uint64_t sent);
  void lose(const std::string& why);
  void distrust(const std::string& why);

  const std::shared_ptr<Worker> worker_;
  const uint64_t key_;
  const Wakers wakers_;
  ucp_ep_h endpoint_ = nullptr;
  size_t chunk_bytes_ = kChunkBytes;  // since open()
  std::atomic<uint64_t> peer_key_{0};
  std::atomic<bool> silent_{false};  // nothing may be sent
  std::atomic<Nanoseconds> sent_at_{0};
  std::atomic<Nanoseconds> heard_at_{0};
  std::atomic<size_t> unsent_{0};
  std::atomic<bool> wants_room_{false};
  std::atomic<bool> awaits_farewell_{false};
  std::atomic<uint64_t> sent_{0};  // records and chunks
  std::atomic<uint64_t> read_{0};  // of the chunks put, the first so many are no longer read

  // Under the worker's lock.
  std::set<uint64_t> read_early_;  // chunks, counted from 1, that are, but not all before them
  uint64_t received_ = 0;          // records and chunks
  uint64_t ends_at_ = UINT64_MAX;  // the peer's sent_, when it has said goodbye

  // Of the holder of the progress lock.
  LinkSink* sink_ = nullptr;
  uint64_t puts_ = 0;
  uint32_t records_sent_ = 0;
  std::array<uint32_t, kPriorityLevels> chunks_sent_{};
  ChunkWindow window_{kChunkBytes};
  std::array<uint64_t, kPriorityLevels> taken_{};  // bytes of the peer's chunks
  std::array<uint64_t, kPriorityLevels> told_{};   // of them, those that the peer was told of

  mutable std::mutex inbox_mutex_;  // guards the rest
  std::string peer_name_;
  OrderedInbox<HeldData> records_;
  std::array<OrderedInbox<Chunk>, kPriorityLevels> chunks_;
  std::array<uint64_t, kPriorityLevels> credits_{};  // as the peer has told last
  bool new_credits_ = false;
};

}  // namespace freescale::ucx
