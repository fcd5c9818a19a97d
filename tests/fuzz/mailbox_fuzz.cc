// Both ends of a mailbox over memory that another process writes to: no record may lead out of the
// ring, whatever its size word, the skip marks and the cursors say.

#include "cpp/transport/shm/mailbox.h"
#include "tests/fuzz/hostile_memory.h"

namespace freescale::fuzz {
namespace {

constexpr size_t kCapacity = 4096;

class Mailbox {
 public:
  void act(Input& input) {
    switch (input.below(8)) {
      case 0:
        return memory_.poke(input, MailboxMemory::bytes_needed(kCapacity));
      case 1:
        return write_size_word(input);
      case 2:
        return cursors().written.store(input.number());
      case 3:
        return cursors().read.store(input.number());
      case 4:
        return write(input.below(MailboxMemory::max_record(kCapacity) + 1));
      case 5:
        return reader_.release();
      case 6:
        static_cast<void>(reader_.take_writer_waits());
        static_cast<void>(writer_.crowded());
        return;
      default:
        return read();
    }
  }

 private:
  MailboxMemory::Cursors& cursors() {
    return *reinterpret_cast<MailboxMemory::Cursors*>(memory_.data());
  }
  void write_size_word(Input& input) {
    const size_t line = input.below(kCapacity / MailboxMemory::kLine);
    const uint64_t size = input.number();
    std::memcpy(memory_.data() + sizeof(MailboxMemory::Cursors) + line * MailboxMemory::kLine,
                &size, sizeof(size));
  }
  void write(size_t bytes) {
    const std::vector<std::byte> record(bytes, std::byte{1});
    static_cast<void>(writer_.try_write(record, {}));
  }
  void read() {
    std::span<const std::byte> record;
    if (reader_.peek(&record) == MailboxReader::Poll::kRecord) read_all(record);
  }

  HostileMemory memory_{MailboxMemory::bytes_needed(kCapacity)};
  MailboxWriter writer_{memory_.data(), kCapacity};
  MailboxReader reader_{memory_.data(), kCapacity};
};

}  // namespace
}  // namespace freescale::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  freescale::fuzz::Input input(data, size);
  freescale::fuzz::Mailbox mailbox;
  while (!input.empty()) mailbox.act(input);
  return 0;
}
