"""What a rank's link carries next: the twin of ``cpp/scheduler/protocol_chunks.cc``.

Of ``Protocol::move_chunks``, ``move_level`` and ``put_next`` with links that share one wire
(``cpp/transport/paced_link.h``): when the wire is free, the most urgent level that has something
for any peer is served, within it the peers in turn, each with a chunk of its oldest message.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from freescale_pg.simulate.level_queue import AGING_SECONDS, LEVELS, Item, LevelQueue

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk(Generic[T]):
    """What goes onto the wire.

    Attributes:
        message: Of which it is a part.
        peer: Who gets it.
        size: Bytes.
        is_last: Whether it ends its message.
    """

    message: T
    peer: int
    size: float
    is_last: bool


@dataclass
class _Outgoing(Generic[T]):
    message: T
    left: float


class SendQueue(Generic[T]):
    """The messages of one rank that share a wire.

    Args:
        peers: How many ranks it leads to.
        chunk_bytes: Largest chunk.
        aging: Seconds after which a level that gets nothing lets its oldest message climb.
    """

    def __init__(self, peers: int, chunk_bytes: float, aging: float = AGING_SECONDS) -> None:
        self._queues = [LevelQueue() for _ in range(peers)]
        self._chunk_bytes = chunk_bytes
        self._aging = aging
        self._next = 0
        self._serial = 0

    def add(self, message: T, peer: int, level: int, size: float, now: float) -> None:
        """Takes a message in that its receiver has granted.

        Args:
            message: Whatever stands for it.
            peer: Its receiver.
            level: 0 is the most urgent.
            size: Bytes, more than 0.
            now: Seconds.
        """
        self._serial += 1
        self._queues[peer].add(Item(level, self._serial, _Outgoing(message, size)), now)

    def take(self, now: float) -> Chunk[T] | None:
        """Returns the chunk that the wire carries next, as it is free now; None: there is none."""
        for level in range(LEVELS):
            for offset in range(len(self._queues)):
                peer = (self._next + offset) % len(self._queues)
                chunk = self._put_next(peer, level, now)
                if chunk is None:
                    continue
                self._next = peer + 1
                for queue in self._queues:
                    queue.age(level, now, self._aging)
                return chunk
        return None

    def _put_next(self, peer: int, level: int, now: float) -> Chunk[T] | None:
        queue = self._queues[peer]
        item = queue.front(level)
        if item is None:
            return None
        outgoing: _Outgoing[T] = item.content
        size = min(self._chunk_bytes, outgoing.left)
        outgoing.left -= size
        is_last = outgoing.left <= 0
        if is_last:
            queue.pop(level)
        queue.served(level, now)
        return Chunk(outgoing.message, peer, size, is_last)
