"""What a rank computes, more slowly while its links are busy."""

from collections.abc import Callable

from freescale_pg.simulate.event_queue import EventQueue


class Processor:
    """Computes one thing at a time.

    Args:
        events: Of the simulation.
        slowdown: By what part computing takes longer while a link of the rank is busy.
    """

    def __init__(self, events: EventQueue, slowdown: float) -> None:
        self._events = events
        self._slowdown = slowdown
        self._busy_until = 0.0
        self._left = 0.0
        self._since = 0.0
        self._done: Callable[[], None] | None = None
        self._version = 0

    def compute(self, seconds: float, done: Callable[[], None]) -> None:
        """Begins to compute.

        Args:
            seconds: How long it takes at full speed.
            done: Called at the end.
        """
        self._left, self._since, self._done = seconds, self._events.now, done
        self._schedule()

    def note_busy(self, until: float) -> None:
        """A link of the rank is busy from now on until then."""
        if until <= self._busy_until:
            return
        self._account()
        self._busy_until = until
        if self._done is not None:
            self._schedule()

    def _account(self) -> None:
        """Takes off what was computed since the last look."""
        now = self._events.now
        slow = max(0.0, min(now, self._busy_until) - self._since)
        self._left -= slow / (1 + self._slowdown) + (now - self._since - slow)
        self._since = now

    def _schedule(self) -> None:
        slow = min(self._left, max(0.0, self._busy_until - self._since) / (1 + self._slowdown))
        end = self._since + self._left + slow * self._slowdown
        self._version += 1
        version = self._version
        self._events.at(end, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version or self._done is None:
            return
        done, self._done = self._done, None
        self._left = 0.0
        done()
