"""How ranks communicate: in which order, by which rule, and at what price to computing."""

import math
from dataclasses import dataclass

from freescale_pg._priority import Priority
from freescale_pg.simulate.schedule import PRIORITIES, Schedule, Traffic, overlapped


@dataclass(frozen=True)
class Regime:
    """One way to communicate.

    Attributes:
        schedule: What a rank does in a step.
        is_prioritised: Whether links carry the most urgent first; else first come, first served.
        slowdown: By what part computing takes longer while its rank communicates: 0.19 is 19 %.

    Raises:
        ValueError: ``slowdown`` is negative or not finite.
    """

    schedule: Schedule
    is_prioritised: bool
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slowdown) and self.slowdown >= 0):
            raise ValueError(f"slowdown must be finite and not negative, got {self.slowdown}")

    @property
    def is_split(self) -> bool:
        """Whether rows that consecutive batches share travel by themselves."""
        return self.schedule is overlapped

    def level(self, traffic: Traffic) -> int:
        """Returns the level of what travels: 0 is the most urgent (``cpp/base/priority.h``)."""
        priority = PRIORITIES[traffic] if self.is_prioritised else Priority.NORMAL
        return int(priority) - int(Priority.URGENT)
