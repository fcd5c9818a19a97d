// How device memory of one process is named to another and opened there, on the stand-in driver.

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cpp/transport/cuda_ipc/exported_memory.h"
#include "cpp/transport/cuda_ipc/imported_memory.h"
#include "tests/cpp/check.h"
#include "tests/cpp/processes.h"
#include "tests/cpp/stand_in_driver.h"
#include "tests/cpp/stand_in_pair.h"

namespace freescale::cuda {
namespace {

using Kind = AllocationNotice::Kind;
using testing::Channel;
using testing::Footprint;
using testing::PairBody;
using testing::StandIn;

constexpr Kind kKinds[] = {Kind::kLegacy, Kind::kDescriptor, Kind::kFabric};
constexpr size_t kPage = testing::kMappingPage;

// Memory of all kinds.
const testing::Environment kEnvironment = {{"FAKE_CUDA_FABRIC", "yes"}};

void on_stand_in(const std::function<void(StandIn&)>& body) {
  testing::on_stand_in(kEnvironment, body);
}

void on_each_version(const std::function<void(StandIn&)>& body) {
  testing::on_each_version(kEnvironment, body);
}

void on_pair(const PairBody& first, const PairBody& second) {
  testing::on_two_processes(kEnvironment, first, second);
}

void on_pair_each_version(const PairBody& first, const PairBody& second,
                          const testing::Environment& more = {}) {
  testing::Environment environment = kEnvironment;
  environment.insert(environment.end(), more.begin(), more.end());
  testing::on_two_processes_each_version(first, second, environment);
}

void expect_contains(const Status& status, const std::string& part) {
  CHECK(!status.ok());
  // Compared only where it fails, to show both.
  if (status.message().find(part) == std::string::npos) CHECK_EQ(status.message(), part);
}

HandleType type_of(Kind kind) {
  return kind == Kind::kFabric ? HandleType::kFabric : HandleType::kPosixFileDescriptor;
}

// A page of memory of any kind.
class Memory {
 public:
  Memory(const StandIn& on, Kind kind, int device = 0) : on_(on), kind_(kind) {
    if (kind == Kind::kLegacy) {
      address_ = on.allocate(kPage);
    } else {
      address_ = on.reserve(kPage);
      on.map_new(address_, kPage, type_of(kind), device);
    }
  }
  DevicePtr address() const { return address_; }

  void free() const {
    if (kind_ == Kind::kLegacy) {
      CHECK_OK(on_.driver().mem_free(address_));
    } else {
      CHECK_OK(on_.driver().mem_unmap(address_, kPage));
    }
  }
  // Frees it, and allocates other memory at the same address.
  void replace() const {
    free();
    if (kind_ == Kind::kLegacy) {
      CHECK_EQ(on_.allocate(kPage), address_);
    } else {
      on_.map_new(address_, kPage, type_of(kind_));
    }
  }

 private:
  const StandIn& on_;
  const Kind kind_;
  DevicePtr address_ = 0;
};

std::vector<ExportedPiece> pieces_of(ExportedMemory& exported, DevicePtr address, size_t bytes) {
  Result<std::vector<ExportedPiece>> pieces = exported.export_range(address, bytes);
  CHECK_OK(pieces);
  return pieces.value();
}

ExportedPiece piece_of(ExportedMemory& exported, DevicePtr address, size_t bytes) {
  const std::vector<ExportedPiece> pieces = pieces_of(exported, address, bytes);
  CHECK_EQ(pieces.size(), 1u);
  return pieces[0];
}

AllocationNotice notice_of(const ExportedMemory& exported, uint64_t id, UniqueFd* fd) {
  Result<AllocationNotice> notice = exported.notice(id, fd);
  CHECK_OK(notice);
  return notice.value();
}

void send_notice(const ExportedMemory& exported, uint64_t id, const Channel& peer) {
  UniqueFd fd;
  const AllocationNotice notice = notice_of(exported, id, &fd);
  const int raw = fd.get();
  peer.send(notice, std::span(&raw, fd.valid() ? 1 : 0));
}

// A page that the peer is told of, and what it is to know.
ExportedPiece share(ExportedMemory& exported, const Memory& memory, const Channel& peer) {
  const ExportedPiece piece = piece_of(exported, memory.address(), kPage);
  send_notice(exported, piece.allocation, peer);
  peer.send(piece);
  return piece;
}

void receive_notice(ImportedMemory& imported, const Channel& peer) {
  UniqueFd fd;
  const auto notice = peer.receive<AllocationNotice>(&fd);
  CHECK_OK(imported.add(notice, std::move(fd)));
}

ExportedPiece receive_shared(ImportedMemory& imported, const Channel& peer) {
  receive_notice(imported, peer);
  return peer.receive<ExportedPiece>();
}

DevicePtr acquire(ImportedMemory& imported, const ExportedPiece& piece) {
  Result<std::optional<DevicePtr>> acquired = imported.acquire(piece, Deadline::never());
  CHECK_OK(acquired);
  CHECK(acquired.value().has_value());
  return *acquired.value();
}

bool is_open(const StandIn& on, DevicePtr address) {
  size_t bytes = 0;
  return on.driver().mem_get_address_range.code(nullptr, &bytes, address) == Code::kSuccess;
}

// What a process holds that a leak would add to.
struct Held {
  size_t descriptors;
  int reservations;
  static Held now(const StandIn& on) {
    return {Footprint::now().descriptors, on.state().reservations};
  }
  bool operator==(const Held&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.descriptors << " descriptors and " << held.reservations << " reservations";
}

// The driver's lock, held by a kernel's first launch until the device is idle.
class HeldDriver {
 public:
  explicit HeldDriver(const StandIn& on) : go_(on.word()) {
    const Stream stream = on.stream();
    on.wait(stream, go_, 1);
    // A name is launched for the first time once.
    static int launched = 0;
    const std::string kernel = "kernel " + std::to_string(++launched);
    launcher_ = std::thread([&on, stream, kernel] {
      const CurrentContext current(on.context());
      CHECK(on.launch_kernel(stream, kernel.c_str(), nullptr) == Code::kSuccess);
    });
    on.await([](const FakeCudaState& state) { return state.draining_launches == 1; });
  }
  ~HeldDriver() {
    go_.store(1);
    launcher_.join();
  }

 private:
  const StandIn::Word go_;
  std::thread launcher_;
};

// `others` come to their end while `call` is blocked in the driver by whoever holds its lock.
void expect_not_blocked_by(const StandIn& on, const std::function<void()>& call,
                           const std::function<void()>& others) {
  std::thread calling;
  {
    const HeldDriver held(on);
    calling = std::thread(call);
    on.await([](const FakeCudaState& state) { return state.lock_waiters == 1; });
    others();
  }
  calling.join();
}

// A peer that shares a page of each kind and waits until the other is done.
void share_pages(StandIn& on, const Channel& peer) {
  ExportedMemory exported(on.context());
  for (const Kind kind : kKinds) {
    const Memory memory(on, kind);
    on.write(memory.address(), "a page");
    share(exported, memory, peer);
    peer.receive<char>();
  }
}

TEST(memory_of_any_kind_is_read_and_written_by_a_peer) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        for (const Kind kind : kKinds) {
          ExportedMemory exported(on.context());
          const Memory memory(on, kind);
          on.write(memory.address() + 100, "from its owner");
          const ExportedPiece piece = piece_of(exported, memory.address() + 100, 200);
          CHECK_EQ(piece.offset, 100u);
          CHECK_EQ(piece.bytes, 200u);
          send_notice(exported, piece.allocation, peer);
          peer.send(piece);
          CHECK_EQ(peer.receive<char>(), 'w');
          CHECK_EQ(on.read(memory.address() + 100, 16), std::string("from its reader!"));
        }
      },
      [](StandIn& on, const Channel& peer) {
        for (const Kind kind : kKinds) {
          ImportedMemory imported(on.context());
          UniqueFd fd;
          const auto notice = peer.receive<AllocationNotice>(&fd);
          CHECK_EQ(notice.kind, kind);
          CHECK_EQ(notice.bytes, kPage);
          CHECK_OK(imported.add(notice, std::move(fd)));
          const DevicePtr memory = acquire(imported, peer.receive<ExportedPiece>());
          CHECK_EQ(on.read(memory, 14), std::string("from its owner"));
          on.write(memory + 9, "reader!");
          imported.release(notice.id);
          peer.send('w');
        }
      });
}

// What the mappings of a range are shared by: torch's allocator has one type for all.
constexpr HandleType kSegments[][3] = {
    {HandleType::kPosixFileDescriptor, HandleType::kPosixFileDescriptor,
     HandleType::kPosixFileDescriptor},
    {HandleType::kFabric, HandleType::kFabric, HandleType::kFabric},
    {HandleType::kFabric, HandleType::kPosixFileDescriptor, HandleType::kFabric}};

// Tells the peer of a range that spans three mappings.
void share_segment(StandIn& on, ExportedMemory& exported, const HandleType* types,
                   const Channel& peer) {
  // One page, two pages, one page, and a hole.
  const DevicePtr memory = on.reserve(5 * kPage);
  on.map_new(memory, kPage, types[0]);
  on.map_new(memory + kPage, 2 * kPage, types[1]);
  on.map_new(memory + 3 * kPage, kPage, types[2]);
  const DevicePtr start = memory + kPage - 4;
  for (size_t i = 0; i < 2 * kPage; i += kPage / 2) on.write(start + i, std::to_string(i));
  on.write(memory + 3 * kPage, "end.");

  const auto pieces = pieces_of(exported, start, 2 * kPage + 8);
  CHECK_EQ(pieces.size(), 3u);
  CHECK_EQ(pieces[0].offset, kPage - 4);
  CHECK_EQ(pieces[0].bytes, 4u);
  CHECK_EQ(pieces[1].offset, 0u);
  CHECK_EQ(pieces[1].bytes, 2 * kPage);
  CHECK_EQ(pieces[2].offset, 0u);
  CHECK_EQ(pieces[2].bytes, 4u);
  // Each has one name, whatever range it is met in.
  CHECK_EQ(piece_of(exported, memory, 1).allocation, pieces[0].allocation);
  CHECK_EQ(piece_of(exported, memory + 3 * kPage - 1, 1).allocation, pieces[1].allocation);
  CHECK_EQ(piece_of(exported, memory + 4 * kPage - 1, 1).allocation, pieces[2].allocation);
  CHECK(exported.take_gone().empty());
  for (const ExportedPiece& piece : pieces) {
    send_notice(exported, piece.allocation, peer);
    peer.send(piece);
  }
}

TEST(a_range_of_several_mappings_is_as_many_pieces) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        ExportedMemory exported(on.context());
        for (const auto& types : kSegments) share_segment(on, exported, types, peer);
        peer.receive<char>();
      },
      [](StandIn& on, const Channel& peer) {
        ImportedMemory imported(on.context());
        for (size_t segment = 0; segment < std::size(kSegments); ++segment) {
          std::string content;
          for (int i = 0; i < 3; ++i) {
            const ExportedPiece piece = receive_shared(imported, peer);
            content += on.read(acquire(imported, piece), piece.bytes);
          }
          CHECK_EQ(content.size(), 2 * kPage + 8);
          for (size_t i = 0; i < 2 * kPage; i += kPage / 2) {
            const std::string expected = std::to_string(i);
            CHECK_EQ(content.substr(i, expected.size()), expected);
          }
          CHECK_EQ(content.substr(2 * kPage + 4), std::string("end."));
        }
        peer.send('x');
      });
}

// A descriptor needs no service beside the driver.
TEST(memory_that_is_shared_both_ways_is_named_by_a_descriptor) {
  on_each_version([](StandIn& on) {
    ExportedMemory exported(on.context());
    const DevicePtr memory = on.reserve(kPage);
    on.map_new(memory, kPage,
               static_cast<HandleType>(static_cast<int>(HandleType::kPosixFileDescriptor) |
                                       static_cast<int>(HandleType::kFabric)));
    UniqueFd fd;
    const AllocationNotice notice =
        notice_of(exported, piece_of(exported, memory, kPage).allocation, &fd);
    CHECK_EQ(notice.kind, Kind::kDescriptor);
    CHECK(fd.valid());
  });
}

TEST(memory_whose_fabric_handle_the_driver_does_not_give_is_an_error_that_says_what_to_do) {
  testing::on_each_version({{"FAKE_CUDA_FABRIC", "claimed"}}, [](StandIn& on) {
    ExportedMemory exported(on.context());
    const Memory memory(on, Kind::kFabric);
    UniqueFd fd;
    const Status status =
        exported.notice(piece_of(exported, memory.address(), kPage).allocation, &fd).status();
    CHECK_EQ(status.code(), StatusCode::kSystem);
    expect_contains(status, "cuMemExportToShareableHandle: CUDA_ERROR_INVALID_VALUE");
    expect_contains(status, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False");
  });
}

TEST(ranges_that_peers_cannot_open_are_errors_that_say_why) {
  on_each_version([](StandIn& on) {
    ExportedMemory exported(on.context());
    const auto refused = [&](DevicePtr address, size_t bytes, const std::string& why) {
      const Status status = exported.export_range(address, bytes).status();
      CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
      expect_contains(status, why);
    };
    CHECK(pieces_of(exported, 0, 0).empty());

    static char pageable[16];
    refused(reinterpret_cast<DevicePtr>(pageable), 16, "is no device memory");
    refused(on.word().device, 4, "is no device memory");

    const DevicePtr plain = on.allocate(1000);
    CHECK_EQ(piece_of(exported, plain, 1000).bytes, 1000u);
    refused(plain, 1001,
            "a range of 1001 bytes leaves its allocation after 1000: the next one has nothing to "
            "do with it");
    refused(plain + 999, ~size_t{0}, "leaves its allocation after 1: the next one has nothing");

    const DevicePtr mapped = on.reserve(2 * kPage);
    on.map_new(mapped, kPage, HandleType::kPosixFileDescriptor);
    refused(mapped, kPage + 1, "leaves its allocation after 2097152: the address");
    refused(mapped + kPage, 1, "has no memory behind it");

    refused(on.allocate_pooled(1000), 1000, "PYTORCH_CUDA_ALLOC_CONF=backend:native");
    on.map_new(mapped + kPage, kPage, HandleType::kNone);
    refused(mapped + kPage, 1, "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC=1");

    Result<PrimaryContext> second = PrimaryContext::retain(on.driver(), 1);
    CHECK_OK(second);
    const CurrentContext scope(second.value());
    refused(on.allocate(1000), 1000,
            "is memory of device 1, but this process communicates with device 0");
    // The current context is not what counts.
    CHECK_EQ(piece_of(exported, plain, 1000).bytes, 1000u);
  });
}

TEST(an_address_that_is_used_again_is_another_allocation) {
  on_each_version([](StandIn& on) {
    for (const Kind kind : kKinds) {
      ExportedMemory exported(on.context());
      const Memory memory(on, kind), other(on, kind);
      const uint64_t first = piece_of(exported, memory.address(), kPage).allocation;
      const uint64_t kept = piece_of(exported, other.address(), kPage).allocation;
      memory.replace();
      // Nobody has looked yet, but nothing may be told of it.
      UniqueFd fd;
      expect_contains(exported.notice(first, &fd).status(), " is gone: its memory was freed");
      CHECK(!fd.valid());

      const uint64_t second = piece_of(exported, memory.address(), kPage).allocation;
      CHECK(exported.take_gone() == std::vector{first});
      CHECK(exported.take_gone().empty());
      memory.replace();
      const uint64_t third = piece_of(exported, memory.address(), kPage).allocation;
      CHECK(exported.take_gone() == std::vector{second});
      CHECK_LT(first, kept);
      CHECK_LT(kept, second);
      CHECK_LT(second, third);
      CHECK_EQ(piece_of(exported, other.address(), kPage).allocation, kept);
    }
  });
}

TEST(memory_that_was_freed_is_noticed_by_the_next_allocation) {
  on_each_version([](StandIn& on) {
    for (const Kind kind : kKinds) {
      ExportedMemory exported(on.context());
      const Memory memory(on, kind), other(on, kind), last(on, kind);
      const uint64_t id = piece_of(exported, memory.address(), kPage).allocation;
      memory.free();
      CHECK(exported.take_gone().empty());
      const uint64_t next = piece_of(exported, other.address(), kPage).allocation;
      CHECK(exported.take_gone() == std::vector{id});
      UniqueFd fd;
      expect_contains(exported.notice(id, &fd).status(), "is gone");

      other.free();
      exported.sweep();
      CHECK(exported.take_gone() == std::vector{next});
      exported.sweep();
      CHECK(exported.take_gone().empty());
    }
  });
}

// Of every id and every descriptor nothing may stay in the exporter that keeps physical memory.
TEST(exporting_keeps_no_memory) {
  on_each_version([](StandIn& on) {
    ExportedMemory exported(on.context());
    for (const Kind kind : kKinds) {
      const Held before = Held::now(on);
      const Memory memory(on, kind);
      const uint64_t id = piece_of(exported, memory.address(), kPage).allocation;
      {
        UniqueFd first, second;
        notice_of(exported, id, &first);
        notice_of(exported, id, &second);
        CHECK_EQ(first.valid(), kind == Kind::kDescriptor);
        if (first.valid()) CHECK_NE(first.get(), second.get());
      }
      memory.free();
      if (kind != Kind::kLegacy) {
        CHECK_OK(on.driver().mem_address_free(memory.address(), kPage));
      }
      CHECK_EQ(Held::now(on), before);
    }
  });
}

TEST(threads_that_meet_an_allocation_at_once_give_it_one_name) {
  on_stand_in([](StandIn& on) {
    ExportedMemory exported(on.context());
    const Memory memory(on, Kind::kLegacy);
    std::vector<uint64_t> ids(3);
    std::vector<std::thread> threads;
    {
      const HeldDriver held(on);
      for (uint64_t& id : ids) {
        threads.emplace_back([&] { id = piece_of(exported, memory.address(), kPage).allocation; });
      }
      // None has named it yet, and none knows of the others.
      on.await([](const FakeCudaState& state) { return state.lock_waiters == 3; });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(ids, std::vector<uint64_t>(3, ids[0]));
  });
}

TEST(threads_that_look_at_once_report_what_is_gone_once) {
  on_stand_in([](StandIn& on) {
    ExportedMemory exported(on.context());
    const Memory memory(on, Kind::kLegacy);
    const uint64_t id = piece_of(exported, memory.address(), kPage).allocation;
    memory.free();
    std::vector<std::thread> threads;
    {
      const HeldDriver held(on);
      for (int i = 0; i < 2; ++i) threads.emplace_back([&] { exported.sweep(); });
      on.await([](const FakeCudaState& state) { return state.lock_waiters == 2; });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK_EQ(exported.take_gone(), std::vector{id});
  });
}

TEST(threads_may_export_while_memory_comes_and_goes) {
  on_stand_in([](StandIn& on) {
    ExportedMemory exported(on.context());
    constexpr size_t kAllocations = 60;
    std::vector<Memory> memory, passing;
    for (size_t i = 0; i < kAllocations; ++i) {
      memory.emplace_back(on, kKinds[i % std::size(kKinds)]);
      passing.emplace_back(on, kKinds[i % std::size(kKinds)]);
    }
    std::vector<std::vector<uint64_t>> ids(3);
    std::vector<std::thread> threads;
    for (auto& mine : ids) {
      threads.emplace_back([&] {
        for (const Memory& one : memory) {
          mine.push_back(piece_of(exported, one.address(), kPage).allocation);
          UniqueFd fd;
          notice_of(exported, mine.back(), &fd);
        }
      });
    }
    std::vector<uint64_t> freed, gone;
    const auto take_gone = [&] {
      for (const uint64_t id : exported.take_gone()) gone.push_back(id);
    };
    for (const Memory& one : passing) {
      freed.push_back(piece_of(exported, one.address(), kPage).allocation);
      {
        const CurrentContext current(on.context());
        one.free();
      }
      take_gone();
    }
    for (std::thread& thread : threads) thread.join();
    exported.sweep();
    take_gone();
    CHECK_EQ(ids[0], ids[1]);
    CHECK_EQ(ids[0], ids[2]);
    std::sort(gone.begin(), gone.end());
    CHECK_EQ(gone, freed);
  });
}

TEST_WITHIN(a_thousand_allocations_leave_nothing_behind, 60) {
  constexpr size_t kAllocations = 1100;
  constexpr size_t kAtOnce = 50;  // so many notices are on their way, and no more
  on_pair(
      [](StandIn& on, const Channel& peer) {
        for (const Kind kind : kKinds) {
          ExportedMemory exported(on.context());
          std::vector<Memory> memory;
          std::vector<uint64_t> ids;
          for (size_t i = 0; i < kAllocations; ++i) {
            memory.emplace_back(on, kind);
            on.write(memory.back().address() + i, std::to_string(i));
            ids.push_back(share(exported, memory.back(), peer).allocation);
            if (i % kAtOnce == 0) peer.receive<char>();
          }
          peer.receive<char>();  // the last ones are open, too
          CHECK(exported.take_gone().empty());
          for (const Memory& one : memory) one.free();
          exported.sweep();
          std::vector<uint64_t> gone = exported.take_gone();
          CHECK_EQ(gone, ids);
          for (const uint64_t id : gone) peer.send(id);
          peer.receive<char>();
        }
      },
      [](StandIn& on, const Channel& peer) {
        for (size_t k = 0; k < std::size(kKinds); ++k) {
          const Held before = Held::now(on);
          ImportedMemory imported(on.context());
          std::vector<DevicePtr> addresses;
          for (size_t i = 0; i < kAllocations; ++i) {
            const ExportedPiece piece = receive_shared(imported, peer);
            const DevicePtr memory = acquire(imported, piece);
            const std::string expected = std::to_string(i);
            CHECK_EQ(on.read(memory + i, expected.size()), expected);
            // Opened already, and so at the same address.
            CHECK_EQ(acquire(imported, {piece.allocation, 1, 1}), memory + 1);
            imported.release(piece.allocation);
            imported.release(piece.allocation);
            addresses.push_back(memory);
            if (i % kAtOnce == 0) peer.send('n');
          }
          peer.send('n');
          imported.close_removed();
          for (const DevicePtr address : addresses) CHECK(is_open(on, address));
          for (size_t i = 0; i < kAllocations; ++i) {
            CHECK_OK(imported.remove(peer.receive<uint64_t>()));
          }
          imported.close_removed();
          for (const DevicePtr address : addresses) CHECK(!is_open(on, address));
          CHECK_EQ(Held::now(on), before);
          peer.send('x');
        }
      });
}

TEST(everything_is_closed_with_the_object) {
  on_pair_each_version(share_pages, [](StandIn& on, const Channel& peer) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      const Held before = Held::now(on);
      auto imported = std::make_unique<ImportedMemory>(on.context());
      const ExportedPiece piece = receive_shared(*imported, peer);
      DevicePtr memory = 0;
      // In threads in which no context is current.
      std::thread([&] { memory = acquire(*imported, piece); }).join();
      CHECK_EQ(on.read(memory, 6), std::string("a page"));
      std::thread([&] { imported.reset(); }).join();
      CHECK(!is_open(on, memory));
      CHECK_EQ(Held::now(on), before);
      peer.send('x');
    }
  });
}

// Two names of one allocation, as of two objects of its owner: the driver opens it once.
TEST(closing_one_name_leaves_the_other_open) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        for (const Kind kind : kKinds) {
          ExportedMemory one(on.context()), two(on.context());
          const Memory memory(on, kind);
          on.write(memory.address(), "twice");
          share(one, memory, peer);
          share(two, memory, peer);
          peer.receive<char>();
        }
      },
      [](StandIn& on, const Channel& peer) {
        for (size_t k = 0; k < std::size(kKinds); ++k) {
          ImportedMemory two(on.context());
          DevicePtr second = 0;
          {
            ImportedMemory one(on.context());
            acquire(one, receive_shared(one, peer));
            second = acquire(two, receive_shared(two, peer));
          }
          CHECK_EQ(on.read(second, 5), std::string("twice"));
          peer.send('x');
        }
      });
}

// What a driver may refuse, and what the user is told then.
struct Denial {
  const char* fault;
  Code code;
  const char* error;
  const char* hint;
};

Denial denial_of(Kind kind) {
  if (kind == Kind::kFabric) {
    return {"fabric_denied", Code::kInvalidHandle,
            "cuMemImportFromShareableHandle: CUDA_ERROR_INVALID_HANDLE (400)", "nvidia-imex"};
  }
  return {"ipc_denied", Code::kOperatingSystem,
          kind == Kind::kLegacy ? "cuIpcOpenMemHandle: CUDA_ERROR_OPERATING_SYSTEM (304)"
                                : "cuMemImportFromShareableHandle: CUDA_ERROR_OPERATING_SYSTEM",
          "--ipc=host --pid=host"};
}

TEST(a_denied_handle_is_an_error_that_says_what_to_do) {
  on_pair_each_version(share_pages, [](StandIn& on, const Channel& peer) {
    for (const Kind kind : kKinds) {
      ImportedMemory imported(on.context());
      const ExportedPiece piece = receive_shared(imported, peer);
      const Denial denial = denial_of(kind);
      on.inject(denial.fault, 1, static_cast<int>(denial.code));
      const Status denied = imported.acquire(piece, Deadline::never()).status();
      CHECK_EQ(denied.code(), StatusCode::kSystem);
      expect_contains(denied, denial.error);
      expect_contains(denied, denial.hint);
      // It was not in use, so nothing keeps it from being closed; and it can be tried again.
      CHECK_EQ(on.read(acquire(imported, piece), 6), std::string("a page"));
      imported.release(piece.allocation);
      CHECK_OK(imported.remove(piece.allocation));
      const Held open = Held::now(on);
      imported.close_removed();
      CHECK_LT(Held::now(on).descriptors, open.descriptors);
      peer.send('x');
    }
  });
}

// As without peer access: what was open stays so, and nothing is waited for, tried or kept.
void expect_no_access(StandIn& on, const Channel& peer, Code refusal) {
  ImportedMemory imported(on.context());
  const ExportedPiece open = receive_shared(imported, peer);
  const DevicePtr memory = acquire(imported, open);
  const Held before = Held::now(on);
  receive_shared(imported, peer);  // comes with a descriptor, and is not opened
  const ExportedPiece piece = receive_shared(imported, peer);
  on.inject("fabric_denied", 1, static_cast<int>(refusal));
  for (const ExportedPiece& later : {piece, piece, open, ExportedPiece{999, 0, 1}}) {
    const auto acquired = imported.acquire(later, Deadline::never());
    CHECK_OK(acquired);
    CHECK(!acquired.value().has_value());
    CHECK_EQ(Held::now(on), before);
  }
  CHECK_EQ(on.read(memory, 6), std::string("opened"));
  imported.release(open.allocation);
  peer.send('x');
}

// No channel of IMEX, no IMEX, and a container without the peer's device.
constexpr Code kRefusals[] = {Code::kNotPermitted, Code::kNotSupported, Code::kInvalidDevice};

TEST(without_a_way_to_the_fabric_there_is_no_address) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        for (size_t i = 0; i < std::size(kRefusals); ++i) {
          ExportedMemory exported(on.context());
          const Memory open(on, Kind::kDescriptor);
          on.write(open.address(), "opened");
          share(exported, open, peer);
          share(exported, Memory(on, Kind::kDescriptor), peer);
          share(exported, Memory(on, Kind::kFabric), peer);
          peer.receive<char>();
        }
      },
      [](StandIn& on, const Channel& peer) {
        for (const Code refusal : kRefusals) expect_no_access(on, peer, refusal);
      });
}

TEST(without_peer_access_there_is_no_address) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        Result<PrimaryContext> second = PrimaryContext::retain(on.driver(), 1);
        CHECK_OK(second);
        const CurrentContext scope(second.value());
        ExportedMemory exported(second.value());
        for (const Kind kind : kKinds) {
          const Memory memory(on, kind, 1), another(on, Kind::kDescriptor, 1);
          share(exported, memory, peer);
          share(exported, another, peer);
          share(exported, Memory(on, Kind::kDescriptor, 1), peer);
          peer.receive<char>();
        }
      },
      [](StandIn& on, const Channel& peer) {
        for (size_t k = 0; k < std::size(kKinds); ++k) {
          const Held before = Held::now(on);
          ImportedMemory imported(on.context());
          const ExportedPiece piece = receive_shared(imported, peer);
          receive_shared(imported, peer);
          const auto acquired = imported.acquire(piece, Deadline::never());
          CHECK_OK(acquired);
          CHECK(!acquired.value().has_value());
          CHECK_EQ(Held::now(on), before);
          // It is known from then on, and nothing is waited for or kept.
          const auto unknown = imported.acquire({999, 0, 1}, Deadline::never());
          CHECK_OK(unknown);
          CHECK(!unknown.value().has_value());
          receive_shared(imported, peer);
          CHECK_EQ(Held::now(on), before);
          peer.send('x');
        }
      },
      {{"FAKE_CUDA_P2P", "none"}});
}

TEST(notices_that_make_no_sense_are_refused) {
  on_stand_in([](StandIn& on) {
    const Held before = Held::now(on);
    ImportedMemory imported(on.context());
    const auto refused = [&](AllocationNotice notice, UniqueFd fd, const std::string& why) {
      const Status status = imported.add(notice, std::move(fd));
      CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
      expect_contains(status, "the peer's allocation 7 " + why);
    };
    const auto descriptor = [] { return UniqueFd(memfd_create("no device memory", MFD_CLOEXEC)); };
    refused({7, static_cast<Kind>(0), 10}, UniqueFd(), "is of unknown kind 0");
    refused({7, static_cast<Kind>(4), 10}, UniqueFd(), "is of unknown kind 4");
    refused({7, Kind::kDescriptor, 10}, UniqueFd(), "came without its descriptor");
    refused({7, Kind::kLegacy, 10}, descriptor(), "came with a descriptor");
    refused({7, Kind::kFabric, 10}, descriptor(), "came with a descriptor");
    refused({7, Kind::kLegacy, 0}, UniqueFd(), "is said to have 0 bytes");
    refused({7, Kind::kLegacy, ~uint64_t{0}}, UniqueFd(), "is said to have 18446744073709551615");
    CHECK_OK(imported.add({7, Kind::kLegacy, 10}, UniqueFd()));
    refused({7, Kind::kLegacy, 10}, UniqueFd(), "was there before");
    refused({7, Kind::kDescriptor, 10}, descriptor(), "was there before");
    CHECK_OK(imported.remove(7));
    refused({7, Kind::kLegacy, 10}, UniqueFd(), "was there before");
    expect_contains(imported.remove(7), "the peer's allocation 7 was freed, but was not there");
    expect_contains(imported.remove(8), "the peer's allocation 8 was freed, but was not there");

    // Descriptors of what is no device memory, and handles of nothing.
    CHECK_OK(imported.add({1, Kind::kDescriptor, kPage}, descriptor()));
    CHECK_OK(imported.add({2, Kind::kLegacy, kPage}, UniqueFd()));
    CHECK_OK(imported.add({3, Kind::kFabric, kPage}, UniqueFd()));
    for (const uint64_t id : {1, 2, 3}) {
      CHECK_EQ(imported.acquire({id, 0, 1}, Deadline::never()).status().code(),
               StatusCode::kSystem);
      CHECK_OK(imported.remove(id));
    }
    CHECK_EQ(Held::now(on), before);
  });
}

TEST(pieces_outside_of_their_allocation_are_refused) {
  on_pair_each_version(share_pages, [](StandIn& on, const Channel& peer) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      ImportedMemory imported(on.context());
      const uint64_t id = receive_shared(imported, peer).allocation;
      const auto refused = [&](uint64_t offset, uint64_t bytes) {
        const Status status = imported.acquire({id, offset, bytes}, Deadline::never()).status();
        CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
        expect_contains(status, "has 2097152 bytes, but " + std::to_string(bytes) + " from byte " +
                                    std::to_string(offset) + " on were named");
      };
      const Held before = Held::now(on);
      refused(kPage, 1);
      refused(0, kPage + 1);
      refused(1, kPage);
      refused(2, ~uint64_t{0});
      refused(~uint64_t{0}, 2);
      CHECK_EQ(Held::now(on), before);
      const DevicePtr memory = acquire(imported, {id, 0, kPage});
      CHECK_EQ(acquire(imported, {id, kPage - 1, 1}), memory + kPage - 1);
      peer.send('x');
    }
  });
}

TEST(an_allocation_smaller_than_was_said_is_refused) {
  on_pair_each_version(share_pages, [](StandIn& on, const Channel& peer) {
    for (const Kind kind : kKinds) {
      const Held before = Held::now(on);
      ImportedMemory imported(on.context());
      UniqueFd fd;
      auto notice = peer.receive<AllocationNotice>(&fd);
      const auto piece = peer.receive<ExportedPiece>();
      notice.bytes += kPage;
      CHECK_OK(imported.add(notice, std::move(fd)));
      const Status status = imported.acquire(piece, Deadline::never()).status();
      expect_contains(status, kind == Kind::kLegacy
                                  ? "has 2097152 bytes, but was said to have 4194304"
                                  : "cuMemMap: CUDA_ERROR_INVALID_VALUE");
      CHECK_OK(imported.remove(notice.id));
      imported.close_removed();
      CHECK_EQ(Held::now(on), before);
      peer.send('x');
    }
  });
}

TEST(a_piece_waits_for_its_notice) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        ExportedMemory exported(on.context());
        for (const Kind kind : kKinds) {
          const Memory memory(on, kind);
          on.write(memory.address(), "late");
          const ExportedPiece piece = piece_of(exported, memory.address(), kPage);
          peer.send(piece);
          CHECK_EQ(peer.receive<char>(), 'g');
          send_notice(exported, piece.allocation, peer);
          peer.receive<char>();
        }
      },
      [](StandIn& on, const Channel& peer) {
        for (size_t k = 0; k < std::size(kKinds); ++k) {
          ImportedMemory imported(on.context());
          const auto piece = peer.receive<ExportedPiece>();
          std::thread listener([&] {
            peer.send('g');
            receive_notice(imported, peer);
          });
          CHECK_EQ(on.read(acquire(imported, piece), 4), std::string("late"));
          listener.join();
          peer.send('x');
        }
      });
}

TEST(a_notice_that_never_comes_is_waited_for_until_the_deadline) {
  on_stand_in([](StandIn& on) {
    ImportedMemory imported(on.context());
    const auto acquired =
        imported.acquire({41, 0, 1}, Deadline::after(std::chrono::milliseconds(5)));
    CHECK_EQ(acquired.status().code(), StatusCode::kTimedOut);
    expect_contains(acquired.status(), "the peer's allocation 41 Timed out");
  });
}

TEST(interrupting_ends_all_waiting) {
  on_pair(share_pages, [](StandIn& on, const Channel& peer) {
    ImportedMemory imported(on.context());
    const ExportedPiece known = receive_shared(imported, peer);
    std::thread watcher([&] { imported.interrupt(); });
    const Status status = imported.acquire({99, 0, 1}, Deadline::never()).status();
    CHECK_EQ(status.code(), StatusCode::kCancelled);
    expect_contains(status, "the peer is lost, and with it the peer's allocation 99");
    watcher.join();
    CHECK_EQ(imported.acquire({99, 0, 1}, Deadline::never()).status().code(),
             StatusCode::kCancelled);
    CHECK_EQ(on.read(acquire(imported, known), 6), std::string("a page"));
    peer.send('x');
    for (size_t rest = 1; rest < std::size(kKinds); ++rest) {
      receive_shared(imported, peer);
      peer.send('x');
    }
  });
}

TEST(memory_that_is_removed_stays_open_while_it_is_in_use) {
  on_pair_each_version(share_pages, [](StandIn& on, const Channel& peer) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      ImportedMemory imported(on.context());
      const Held before = Held::now(on);
      const ExportedPiece piece = receive_shared(imported, peer);
      const DevicePtr memory = acquire(imported, piece);
      acquire(imported, piece);
      CHECK_OK(imported.remove(piece.allocation));
      imported.release(piece.allocation);
      imported.close_removed();
      CHECK_EQ(on.read(memory, 6), std::string("a page"));
      const Status status = imported.acquire(piece, Deadline::never()).status();
      CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
      expect_contains(status, "was named after it was freed");

      imported.release(piece.allocation);
      CHECK_EQ(on.read(memory, 6), std::string("a page"));  // release() closes nothing
      imported.close_removed();
      CHECK(!is_open(on, memory));
      CHECK_EQ(Held::now(on), before);
      peer.send('x');
    }
  });
}

TEST(a_descriptor_that_nobody_opened_is_closed_when_its_memory_is_removed) {
  on_pair(share_pages, [](StandIn& on, const Channel& peer) {
    for (size_t k = 0; k < std::size(kKinds); ++k) {
      ImportedMemory imported(on.context());
      const Held before = Held::now(on);
      const uint64_t id = receive_shared(imported, peer).allocation;
      CHECK_OK(imported.remove(id));
      CHECK_EQ(Held::now(on), before);
      peer.send('x');
    }
  });
}

// The driver has its own.
TEST(a_descriptor_is_closed_once_its_memory_is_open) {
  on_pair_each_version(
      [](StandIn& on, const Channel& peer) {
        ExportedMemory exported(on.context());
        const Memory memory(on, Kind::kDescriptor);
        on.write(memory.address(), "a page");
        share(exported, memory, peer);
        peer.receive<char>();
      },
      [](StandIn& on, const Channel& peer) {
        ImportedMemory imported(on.context());
        UniqueFd fd;
        const auto notice = peer.receive<AllocationNotice>(&fd);
        const int raw = fd.get();
        CHECK_OK(imported.add(notice, std::move(fd)));
        const auto piece = peer.receive<ExportedPiece>();
        CHECK_GE(fcntl(raw, F_GETFD), 0);
        const DevicePtr memory = acquire(imported, piece);
        CHECK_EQ(fcntl(raw, F_GETFD), -1);
        CHECK_EQ(on.read(memory, 6), std::string("a page"));
        peer.send('x');
      });
}

TEST(notices_go_on_while_the_driver_opens_and_closes_memory) {
  on_pair(share_pages, [](StandIn& on, const Channel& peer) {
    ImportedMemory imported(on.context());
    const ExportedPiece page = receive_shared(imported, peer);
    DevicePtr memory = 0;
    ExportedPiece next;
    expect_not_blocked_by(
        on, [&] { memory = acquire(imported, page); },
        [&] {
          peer.send('x');
          next = receive_shared(imported, peer);
        });
    CHECK_EQ(on.read(memory, 6), std::string("a page"));
    imported.release(page.allocation);
    CHECK_OK(imported.remove(page.allocation));
    expect_not_blocked_by(
        on, [&] { imported.close_removed(); },
        [&] {
          CHECK_OK(imported.remove(next.allocation));
          imported.interrupt();
        });
    CHECK(!is_open(on, memory));
    peer.send('x');
    for (size_t rest = 2; rest < std::size(kKinds); ++rest) {
      CHECK_OK(imported.remove(receive_shared(imported, peer).allocation));
      peer.send('x');
    }
  });
}

TEST(notices_go_on_while_the_driver_is_held) {
  on_pair(share_pages, [](StandIn& on, const Channel& peer) {
    ImportedMemory imported(on.context());
    ExportedMemory exported(on.context());
    const ExportedPiece open = receive_shared(imported, peer);
    acquire(imported, open);
    peer.send('x');
    {
      const HeldDriver held(on);
      for (size_t rest = 1; rest < std::size(kKinds); ++rest) {
        const ExportedPiece next = receive_shared(imported, peer);
        CHECK_OK(imported.remove(next.allocation));
        // The last is done with once the driver goes on.
        if (rest + 1 < std::size(kKinds)) peer.send('x');
      }
      CHECK_OK(imported.remove(open.allocation));
      imported.release(open.allocation);
      imported.interrupt();
      CHECK(exported.take_gone().empty());
    }
    peer.send('x');
  });
}

}  // namespace
}  // namespace freescale::cuda
