"""A link of one rank, chunk by chunk."""

from collections.abc import Callable
from dataclasses import dataclass

from freescale_pg.simulate.event_queue import EventQueue
from freescale_pg.simulate.send_queue import Chunk, SendQueue

# cpp/transport/emulated_nic.h, kInterleaved: so much may be ahead of its time before small
# messages wait like large ones.
_INTERLEAVED_BYTES = 4 << 10


@dataclass(frozen=True)
class Message:
    """What one rank sends to another in an exchange.

    Attributes:
        receiver: Its rank.
        sent: Called when the last byte has left.
        landed: Called when it has come in.
    """

    receiver: int
    sent: Callable[[], None]
    landed: Callable[[], None]


class Inlet:
    """The receiving side of a link: takes chunks one after the other.

    Args:
        rate: Bytes per second; infinite: all at once.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free_at = 0.0

    def take(self, size: float, now: float) -> float:
        """Returns when a chunk is in whose last byte arrives now."""
        self._free_at = max(now, self._free_at + size / self._rate)
        return self._free_at


class Wire:
    """The sending side of a link: one chunk at a time, which one is decided when it is free.

    Args:
        events: Of the simulation.
        rate: Bytes per second.
        queue: What waits for it.
        inlets: The other end, by rank.
        note_busy: Called with a rank, from when and until when one of its links is busy.
        rank: Whose it is.
    """

    def __init__(
        self,
        events: EventQueue,
        rate: float,
        queue: SendQueue[Message],
        inlets: list[Inlet],
        note_busy: Callable[[int, float], None],
        rank: int,
    ) -> None:
        self._events = events
        self._rate = rate
        self._queue = queue
        self._inlets = inlets
        self._note_busy = note_busy
        self._rank = rank
        self._free_at = 0.0
        self._interleaved_until = 0.0
        self._is_busy = False

    def send(self, message: Message, level: int, size: float) -> None:
        """Sends a message that its receiver has granted; of more than 0 bytes."""
        self._queue.add(message, message.receiver, level, size, self._events.now)
        if not self._is_busy:
            self._next()

    def may_interleave(self) -> bool:
        """Whether a small message may go at once."""
        ahead = self._interleaved_until - self._events.now
        return ahead <= _INTERLEAVED_BYTES / self._rate

    def interleave(self, size: float) -> None:
        """Notes that a small message has gone at once: what follows waits for it."""
        now, seconds = self._events.now, size / self._rate
        self._interleaved_until = max(self._interleaved_until, now) + seconds
        self._free_at += seconds

    def _next(self) -> None:
        now = self._events.now
        chunk = self._queue.take(now)
        self._is_busy = chunk is not None
        if chunk is None:
            return
        begin = max(now, self._free_at, self._interleaved_until)
        self._free_at = begin + chunk.size / self._rate
        self._note_busy(self._rank, self._free_at)
        self._note_busy(chunk.peer, self._free_at)
        self._events.at(self._free_at, lambda: self._sent(chunk))

    def _sent(self, chunk: Chunk[Message]) -> None:
        now = self._events.now
        arrived = self._inlets[chunk.peer].take(chunk.size, now)
        if arrived > now:
            self._note_busy(chunk.peer, arrived)
        if chunk.is_last:
            chunk.message.sent()
            self._events.at(arrived, chunk.message.landed)
        self._next()
