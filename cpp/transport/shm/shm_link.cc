#include "cpp/transport/shm/shm_link.h"

#include <sys/uio.h>

#include <bit>
#include <cerrno>
#include <utility>

namespace freescale {
namespace {

constexpr size_t kAlignment = 4096;

size_t align_up(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t mailbox_share(const ShmGeometry& geometry) {
  return align_up(MailboxMemory::bytes_needed(geometry.mailbox_bytes));
}

size_t direction_bytes(const ShmGeometry& geometry) {
  return kAlignment + mailbox_share(geometry) +
         align_up(ChunkLaneMemory::bytes_needed(geometry.chunks));
}

}  // namespace

bool ShmGeometry::valid() const {
  return std::has_single_bit(mailbox_bytes) && mailbox_bytes >= 4096 &&
         mailbox_bytes <= (64u << 20) && ChunkLaneMemory::valid(chunks);
}

size_t ShmGeometry::link_bytes() const { return 2 * direction_bytes(*this); }

ShmLink::Half ShmLink::half_of(const SharedMemory& memory, const ShmGeometry& geometry,
                               bool lower) {
  std::byte* base = memory.data() + (lower ? 0 : direction_bytes(geometry));
  std::byte* mailbox = base + kAlignment;  // the first page holds the counter alone
  return {reinterpret_cast<std::atomic<uint64_t>*>(base), mailbox,
          mailbox + mailbox_share(geometry)};
}

ShmLink::ShmLink(SharedMemory memory, ShmGeometry geometry, bool first, SharedMemory peer_doorbell,
                 ShmPeer peer)
    : memory_(std::move(memory)),
      geometry_(geometry),
      peer_doorbell_(std::move(peer_doorbell)),
      peer_(peer),
      outgoing_(half_of(memory_, geometry, first)),
      incoming_(half_of(memory_, geometry, !first)),
      mailbox_writer_(outgoing_.mailbox, geometry.mailbox_bytes),
      mailbox_reader_(incoming_.mailbox, geometry.mailbox_bytes),
      chunk_writer_(outgoing_.chunks, geometry.chunks),
      chunk_reader_(incoming_.chunks, geometry.chunks) {}

size_t ShmLink::max_record_bytes() const {
  return MailboxMemory::max_record(geometry_.mailbox_bytes);
}

bool ShmLink::try_send(std::span<const std::byte> head, std::span<const Segment> body) {
  const bool sent = mailbox_writer_.try_write(head, body);
  if (mailbox_writer_.corrupt()) distrust("has read what was never written");
  return sent;
}

bool ShmLink::poll_record(LinkSink& sink) {
  std::span<const std::byte> record;
  switch (mailbox_reader_.peek(&record)) {
    case MailboxReader::Poll::kEmpty:
      return false;
    case MailboxReader::Poll::kCorrupt:
      distrust("wrote a record that makes no sense");
      return false;
    case MailboxReader::Poll::kRecord:
      sink.on_record(record);
      mailbox_reader_.release();
      // Its owner may have nothing in flight that it would be woken for otherwise.
      if (mailbox_reader_.take_writer_waits()) {
        doorbell().ring_always(Doorbell::kCaller | Doorbell::kEngine);
      }
      return true;
  }
  return false;
}

bool ShmLink::try_put(int level, const ChunkTag& tag, std::span<const Segment> pieces) {
  const bool put = chunk_writer_.try_put(level, tag, pieces);
  if (chunk_writer_.corrupt()) distrust("returned a chunk that it did not have");
  return put;
}

bool ShmLink::can_put(int level, size_t) {
  const bool can = chunk_writer_.can_put(level);
  if (chunk_writer_.corrupt()) distrust("returned a chunk that it did not have");
  return can;
}

bool ShmLink::poll_chunk(int level, LinkSink& sink) {
  switch (chunk_reader_.poll(level, sink)) {
    case ChunkLaneReader::Poll::kEmpty:
      return false;
    case ChunkLaneReader::Poll::kCorrupt:
      distrust("wrote a chunk that makes no sense");
      return false;
    case ChunkLaneReader::Poll::kChunk:
      if (chunk_reader_.take_writer_waits()) doorbell().ring();
      return true;
  }
  return false;
}

void ShmLink::distrust(const char* why) { give_up(Status::peer_lost(peer_name() + " " + why)); }

void ShmLink::notify() {
  if (mailbox_writer_.crowded()) {
    doorbell().ring_always(Doorbell::kCaller | Doorbell::kEngine);
  } else {
    doorbell().ring();
  }
}

Status ShmLink::pull(uint64_t from, std::byte* to, size_t bytes) {
  return read_process_memory(peer_.pid, from, to, bytes);
}

std::string ShmLink::peer_name() const {
  return peer_.pid > 0 ? "process " + std::to_string(peer_.pid) : "a process of another namespace";
}

Status read_process_memory(pid_t pid, uint64_t from, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    const iovec local{to, bytes};
    const iovec remote{reinterpret_cast<void*>(from), bytes};
    const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      return Status::from_errno("process_vm_readv from process " + std::to_string(pid),
                                got < 0 ? errno : EIO);
    }
    from += static_cast<uint64_t>(got);
    to += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

}  // namespace freescale
