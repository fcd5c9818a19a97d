#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>

#include "cpp/transport/shm/chunk_lane.h"
#include "cpp/transport/shm/doorbell.h"
#include "cpp/transport/shm/mailbox.h"
#include "cpp/transport/shm/shared_memory.h"
#include "cpp/transport/transport.h"

namespace freescale {

// Sizes of the memory that a pair of processes shares; the connecting side chooses.
struct ShmGeometry {
  size_t mailbox_bytes = 64 << 10;  // a power of two
  ChunkGeometry chunks;

  bool valid() const;
  size_t link_bytes() const;  // both directions
};

// What the two ends of a link found out about each other while connecting.
struct ShmPeer {
  pid_t pid = 0;          // in our pid namespace; 0 when not visible
  bool can_pull = false;  // process_vm_readv from the peer was tried with real bytes
};

// A link through memory that both processes map.
class ShmLink : public Link {
 public:
  // `first` is true on exactly one side: it decides which half of the memory is whose.
  ShmLink(SharedMemory memory, ShmGeometry geometry, bool first, SharedMemory peer_doorbell,
          ShmPeer peer);

  size_t max_record_bytes() const override;
  size_t chunk_bytes() const override { return geometry_.chunks.chunk_bytes; }
  bool try_send(std::span<const std::byte> head, std::span<const Segment> body) override;
  bool poll_record(LinkSink& sink) override;
  bool try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) override;
  bool can_put(int level, size_t bytes) override;
  bool poll_chunk(int level, LinkSink& sink) override;
  void notify() override;
  bool can_pull() const override { return peer_.can_pull; }
  Status pull(uint64_t from, std::byte* to, size_t bytes) override;
  void revoke() override { outgoing_.revocations->fetch_add(1, std::memory_order_seq_cst); }
  uint64_t revocations() const override { return *outgoing_.revocations; }
  uint64_t peer_revocations() const override { return *incoming_.revocations; }
  std::string transport() const override { return "shm"; }
  std::string peer_name() const override;

 private:
  // Each side writes to one half of the memory and reads from the other.
  struct Half {
    std::atomic<uint64_t>* revocations;
    std::byte* mailbox;
    std::byte* chunks;
  };
  void distrust(const char* why);
  Doorbell& doorbell() const { return *reinterpret_cast<Doorbell*>(peer_doorbell_.data()); }
  static Half half_of(const SharedMemory& memory, const ShmGeometry& geometry, bool lower);

  const SharedMemory memory_;
  const ShmGeometry geometry_;
  const SharedMemory peer_doorbell_;
  const ShmPeer peer_;
  const Half outgoing_;
  const Half incoming_;
  MailboxWriter mailbox_writer_;
  MailboxReader mailbox_reader_;
  ChunkLaneWriter chunk_writer_;
  ChunkLaneReader chunk_reader_;
};

// Reads `bytes` at `from` in process `pid` with process_vm_readv.
Status read_process_memory(pid_t pid, uint64_t from, std::byte* to, size_t bytes);

}  // namespace freescale
