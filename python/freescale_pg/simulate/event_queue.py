"""What happens when."""

import heapq
from collections.abc import Callable
from itertools import count


class EventQueue:
    """Calls by their time; of equal times, by when they were added.

    Attributes:
        now: Time of the present call, seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Has something called; a time in the past is now."""
        heapq.heappush(self._calls, (max(time, self.now), next(self._numbers), call))

    def run(self) -> None:
        """Calls all, and what they add, until there is nothing left."""
        while self._calls:
            self.now, _, call = heapq.heappop(self._calls)
            call()
