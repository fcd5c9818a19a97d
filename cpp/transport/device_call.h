#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cpp/base/clock.h"
#include "cpp/base/status.h"
#include "cpp/device/segment.h"
#include "cpp/transport/transport.h"

namespace freescale {

// One message between the device memories of two ranks, on one of them: its way out or in. The two
// ends send each other news, which the engine carries from the one to the other. All calls come
// from the holder of the engine's progress lock, and none blocks or calls a driver.
class DeviceTransfer {
 public:
  enum class State {
    kWaiting,    // for the other rank, or for a thread that calls the driver
    kSubmitted,  // needs no call of a driver any more, in neither process, to come to its end
    kOver,       // nothing touches this rank's memory any more for it
    kFailed,     // failure() says why; abandon() is what is left to do
  };

  virtual ~DeviceTransfer() = default;
  virtual State state() = 0;
  virtual Status failure() const = 0;

  // Whether it still needs the other rank to come to its end: then it fails if that is lost.
  virtual bool needs_peer() = 0;

  // Whether the other rank's stream has come to the message; false until that is known. A receiver
  // only knows when its last byte has arrived, so there it is true.
  virtual bool peer_has_come() = 0;

  // What the other end is to be told now; false if nothing.
  virtual bool take_news(std::vector<std::byte>* news) = 0;
  // What it has told. Nonsense is an error.
  virtual Status on_news(std::span<const std::byte> news) = 0;

  // The operation has failed. The transfer is kOver once its memory is free, which may take until
  // the other end says so.
  virtual void abandon() = 0;
  // The other end's process is gone, and says nothing more.
  virtual void lose_peer() = 0;

  // Whether the bytes went by way of the host's memory.
  virtual bool staged() const = 0;
};

// One operation of this rank on device memory: made by the thread that calls it, in the order of a
// stream there, then carried out by the engine. Keeps the operation's memory.
class DeviceCall {
 public:
  virtual ~DeviceCall() = default;

  // The receiver's half, once the two ranks agree on the message. Writes into `grant` what the
  // sender has to know.
  virtual Result<std::shared_ptr<DeviceTransfer>> receive(Link& from,
                                                          std::vector<std::byte>* grant) = 0;
  // The sender's half, with the grant that has come.
  virtual Result<std::shared_ptr<DeviceTransfer>> send(Link& to, int level,
                                                       std::span<const std::byte> grant) = 0;
  // What stays on this rank.
  virtual Result<std::shared_ptr<DeviceTransfer>> copy(int level) = 0;

  // Messages to and from a rank of another host go by way of memory of this host, `memory`: out of
  // the device into it, until the transfer is over, and then as any message of the host does; and,
  // once the two ranks agree on the message, from it into the device as soon as stage_in_may_go()
  // has said that all of it is there. Headers do not wait for any of this. The way in hears the
  // news of the way out, but has none itself.
  virtual Result<std::shared_ptr<DeviceTransfer>> stage_out(Link& to, int level,
                                                            std::vector<Segment>* memory) = 0;
  virtual Result<std::shared_ptr<DeviceTransfer>> stage_in(Link& from, int level,
                                                           std::vector<Segment>* memory) = 0;
  virtual void stage_in_may_go(Link& from) = 0;

  // Lets chunks go by priority, those of other calls too. Often.
  virtual void pace(Nanoseconds now) = 0;
  // The operation has failed: ends whatever streams wait for in it.
  virtual void give_up() = 0;

  // The answer to a grant for an operation that is over on this rank: what tells the receiver that
  // nothing will come.
  static std::vector<std::byte> nothing_comes();
  // News of a message whose way out of the device, stage_out(), is over.
  static std::vector<std::byte> all_submitted();
};

}  // namespace freescale
