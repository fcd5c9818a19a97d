"""Messages that wait for a link to one peer: the twin of ``cpp/scheduler/level_queue.h``."""

from bisect import insort
from dataclasses import dataclass
from typing import Any

LEVELS = 5
# cpp/scheduler/engine.h, EngineOptions::aging.
AGING_SECONDS = 0.1


@dataclass
class Item:
    """A message.

    Attributes:
        level: 0 is the most urgent.
        serial: Smaller is older.
        content: Whatever belongs to it.
    """

    level: int
    serial: int
    content: Any = None


class LevelQueue:
    """Items by urgency, then by age; a level that starves lets its oldest climb."""

    def __init__(self) -> None:
        self._levels: list[list[Item]] = [[] for _ in range(LEVELS)]
        self._served = [0.0] * LEVELS

    def __len__(self) -> int:
        return sum(map(len, self._levels))

    def add(self, item: Item, now: float) -> None:
        """Takes an item in, at its level."""
        if not self._levels[item.level]:
            self._served[item.level] = now
        insort(self._levels[item.level], item, key=lambda each: each.serial)

    def front(self, level: int) -> Item | None:
        """Returns the oldest of a level."""
        return self._levels[level][0] if self._levels[level] else None

    def served(self, level: int, now: float) -> None:
        """Notes that the front of a level got a chunk."""
        self._served[level] = now

    def pop(self, level: int) -> None:
        """Takes the front of a level out."""
        del self._levels[level][0]

    def age(self, served_level: int, now: float, aging: float) -> None:
        """While chunks of a level move: lets the oldest of each starved level below it climb."""
        for level in range(served_level + 1, LEVELS):
            if not self._levels[level] or now - self._served[level] < aging:
                continue
            item = self._levels[level].pop(0)
            self._served[level] = now
            item.level -= 1
            self.add(item, now)
