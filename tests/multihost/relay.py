"""A wire with delay, loss and cuts, which the kernel of a test machine may not have (netem).

The process copies packets between pairs of TAP devices, each of which is a port of one of two
bridges. It ends with its standard input. See :class:`Relay` for how to talk to it.
"""

import collections
import errno
import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from namespaces import STEP_LIMIT, Namespaces

# From the kernel's if_tun.h.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
CHECKSUM_AND_TCP_SEGMENTS = 0x01 | 0x02 | 0x04
DEVICE = Path("/dev/net/tun")
# The largest packet that segmentation is left to, with its headers.
PACKET_LIMIT = 66_000
# Bytes that wait in one direction; what comes on top is lost, as in the buffer of a router.
BUFFER_LIMIT = 64 << 20
BATCH = 64


@dataclass(frozen=True)
class Wire:
    """What happens to every packet.

    Attributes:
        delay: Seconds, in each direction.
        loss: Probability of being lost, in each direction.
        seed: Of the choice which ones are lost.
        cut: Nothing passes, and nobody is told.
    """

    delay: float = 0.0
    loss: float = 0.0
    seed: int = 0
    cut: bool = False


@dataclass(frozen=True)
class Counts:
    """Packets since the relay's start, both directions together."""

    passed: int
    lost: int


class Relay:
    """The relay process, as the test sees it.

    Args:
        switch: Where the bridges are.
        pairs: Names of the TAP devices to make and connect.
        wire: What to begin with.
    """

    def __init__(self, switch: Namespaces, pairs: Sequence[tuple[str, str]], wire: Wire) -> None:
        names = [name for pair in pairs for name in pair]
        self._process = switch.popen([sys.executable, str(Path(__file__).resolve()), *names])
        try:
            self.set(wire)
        except BaseException:
            self.close()
            raise

    def set(self, wire: Wire) -> Counts:
        """Changes the wire. When this returns, all packets that come meet the new one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(wire)) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], STEP_LIMIT)[0]:
            raise RuntimeError(f"no answer of the relay within {STEP_LIMIT:.0f} s")
        answer = self._process.stdout.readline()
        if not answer.startswith("{"):
            raise RuntimeError(f"relay: {answer}{self._process.stdout.read()}")
        return Counts(**json.loads(answer))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=STEP_LIMIT)


# --- In the process -------------------------------------------------------------------------------


class Direction:
    """From one device to another."""

    def __init__(self, source: int, target: int) -> None:
        self.source, self.target = source, target
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self.buffered = self.passed = self.lost = 0
        self.choice = random.Random()

    def take(self, wire: Wire) -> None:
        """Reads what has come: some packets, so that the other directions have their turn."""
        for _ in range(BATCH):
            try:
                packet = os.read(self.source, PACKET_LIMIT)
            except BlockingIOError:
                return
            if wire.cut or (wire.loss and self.choice.random() < wire.loss):
                self.lost += 1
            elif not wire.delay and not self.waiting:
                self._pass(packet)
            elif self.buffered + len(packet) > BUFFER_LIMIT:
                self.lost += 1
            else:
                self.waiting.append((time.monotonic() + wire.delay, packet))
                self.buffered += len(packet)

    def deliver(self) -> float | None:
        """Writes what is due; returns the seconds until more is."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            packet = self.waiting.popleft()[1]
            self.buffered -= len(packet)
            self._pass(packet)
        return None

    def _pass(self, packet: bytes) -> None:
        try:
            os.write(self.target, packet)
            self.passed += 1
        except OSError as error:  # A device that is down, or out of buffers, loses packets.
            if error.errno not in (errno.EIO, errno.ENOBUFS, errno.EAGAIN):
                raise
            self.lost += 1


def open_tap(name: str) -> int:
    device = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return device


def main(names: list[str]) -> None:
    taps = [open_tap(name) for name in names]
    directions = [Direction(taps[n], taps[n ^ 1]) for n in range(len(taps))]
    by_source = {direction.source: direction for direction in directions}
    wire = Wire()
    while True:
        times = [left for direction in directions if (left := direction.deliver()) is not None]
        ready = select.select([0, *taps], [], [], min(times, default=None))[0]
        if 0 in ready:
            line = sys.stdin.readline()
            if not line:
                return
            wire = change(Wire(**json.loads(line)), wire, directions)
        for source in ready:
            if source != 0:
                by_source[source].take(wire)


def change(wire: Wire, before: Wire, directions: list[Direction]) -> Wire:
    """Makes the new wire valid and says so."""
    for number, direction in enumerate(directions):
        # With segmentation left to the receiver, "packets" are up to 64 KiB: fast, but nothing
        # that a real wire would lose as a whole.
        fcntl.ioctl(direction.source, TUNSETOFFLOAD, 0 if wire.loss else CHECKSUM_AND_TCP_SEGMENTS)
        if wire.seed != before.seed or not before.loss:
            direction.choice.seed(f"{wire.seed} {number}")
        if wire.cut:
            direction.lost += len(direction.waiting)
            direction.waiting.clear()
            direction.buffered = 0
    counts = Counts(sum(d.passed for d in directions), sum(d.lost for d in directions))
    print(json.dumps(asdict(counts)), flush=True)
    return wire


if __name__ == "__main__":
    main(sys.argv[1:])
