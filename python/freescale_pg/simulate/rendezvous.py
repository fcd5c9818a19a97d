"""An exchange between all ranks, from the first that asks for it to the last that has it."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.links import Links
from freescale_pg.simulate.wire import Message


class Rendezvous:
    """Who has asked for an exchange, and who is done with it.

    A message moves once both of its ranks have asked (``docs/architecture.md``: the receiver's
    grant). A small one may go before, but counts for its receiver only when that has asked.

    Args:
        pair_bytes: From each rank to each other; shape ``[W, W]``.
        links: Move the messages.
        level: Their urgency; 0 is the most urgent.
        done: Called with each rank that has sent and received all of it.

    Attributes:
        last_asked: When the last rank so far has asked.
    """

    def __init__(
        self,
        pair_bytes: npt.NDArray[np.float64],
        links: Links,
        level: int,
        done: Callable[[int], None],
    ) -> None:
        ranks = len(pair_bytes)
        self._bytes = pair_bytes
        self._links = links
        self._level = level
        self._done = done
        self._asked = [False] * ranks
        # A message to and one from each other rank, and the own call.
        self._missing = [2 * (ranks - 1) + 1] * ranks
        self._interleaved: set[tuple[int, int]] = set()
        self.last_asked = 0.0

    def has_asked(self, rank: int) -> bool:
        """Returns whether a rank has asked for it."""
        return self._asked[rank]

    def ask(self, rank: int, now: float) -> None:
        """A rank asks for it."""
        self._asked[rank] = True
        self.last_asked = now
        for peer in range(len(self._asked)):
            if peer == rank:
                continue
            size = float(self._bytes[rank, peer])
            if size > 0 and self._links.interleave(rank, peer, size):
                self._interleaved.add((rank, peer))
            if self._asked[peer]:
                self._begin(rank, peer)
                self._begin(peer, rank)
        self._one_less(rank)

    def _begin(self, sender: int, receiver: int) -> None:
        size = float(self._bytes[sender, receiver])
        if size == 0 or (sender, receiver) in self._interleaved:
            self._one_less(sender)
            self._one_less(receiver)
            return
        message = Message(
            receiver, lambda: self._one_less(sender), lambda: self._one_less(receiver)
        )
        self._links.send(sender, message, self._level, size)

    def _one_less(self, rank: int) -> None:
        self._missing[rank] -= 1
        if self._missing[rank] == 0:
            self._done(rank)
