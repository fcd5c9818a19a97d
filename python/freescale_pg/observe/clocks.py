"""How far the clocks of the ranks are apart, and how fast they drift."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

# The quickest of so many round trips is the one that waited least on its way.
_ROUND_TRIPS = 16


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What one rank's monotonic clock is ahead of that of the group's first rank, at a moment.

    Attributes:
        measured_ns: Ahead by so much.
        error_ns: At most so much more or less: half of the quickest round trip.
        at_ns: When, by the clock of the rank.
    """

    measured_ns: int = 0
    error_ns: int = 0
    at_ns: int = 0

    @property
    def may_be_none(self) -> bool:
        """Whether the clocks may be the same one, as those of processes of a host are."""
        return abs(self.measured_ns) <= self.error_ns

    @property
    def offset_ns(self) -> int:
        """Ahead by so much, 0 where the clocks may be the same one."""
        return 0 if self.may_be_none else self.measured_ns


@dataclass(frozen=True, slots=True)
class ClockDrift:
    """How one rank's clock goes beside that of the group's first rank, from two comparisons.

    Quartz clocks of two hosts differ by some 10 us in every second, by a rate that hardly changes
    in minutes. So what is between the two moments is on a line, and what is beside them is not far
    from it.

    Attributes:
        first: Of the begin.
        last: Of the end; None: the clocks were compared only once.
    """

    first: ClockOffset
    last: ClockOffset | None = None

    @property
    def rate(self) -> float:
        """By what part of the time that passes the rank's clock gets ahead; 0: it does not."""
        if self.last is None or self._is_one_clock or self.last.at_ns <= self.first.at_ns:
            return 0.0
        passed = self.last.at_ns - self.first.at_ns
        return (self.last.measured_ns - self.first.measured_ns) / passed

    @property
    def error_ns(self) -> int:
        """The larger one of the two comparisons; between them the line is not worse."""
        return max(each.error_ns for each in (self.first, self.last) if each is not None)

    def offset_at(self, at_ns: int) -> int:
        """Returns what the rank's clock is ahead when it shows a time; ns."""
        if self._is_one_clock:
            return 0
        return self.first.measured_ns + round(self.rate * (at_ns - self.first.at_ns))

    def first_ranks_time(self, at_ns: int) -> int:
        """Returns what the first rank's clock shows when the rank's shows a time; ns."""
        return at_ns - self.offset_at(at_ns)

    @property
    def _is_one_clock(self) -> bool:
        return self.first.may_be_none and (self.last is None or self.last.may_be_none)


def measure_offsets(group: dist.ProcessGroup) -> list[ClockOffset]:
    """Asks every rank for its time, as the Network Time Protocol does; collective.

    A rank that answers halfway through a round trip shows the difference of the clocks; it can't
    be wrong by more than half of the round trip.

    Args:
        group: Of a backend that takes CPU tensors.

    Returns:
        By rank of the group; on its first rank alone, empty on the others.
    """
    if group.rank() != 0:
        _answer(group)
        return []
    others = [_ask(group, rank) for rank in range(1, group.size())]
    return [ClockOffset(at_ns=time.monotonic_ns()), *others]


def measure_drifts(group: dist.ProcessGroup, first: Sequence[ClockOffset]) -> list[ClockDrift]:
    """Compares the clocks once more; collective.

    Args:
        group: As before.
        first: What :func:`measure_offsets` returned on the first rank at the begin; elsewhere
            anything.

    Returns:
        By rank of the group; on its first rank alone, empty on the others.
    """
    last = measure_offsets(group)
    if group.rank() != 0:
        return []
    return [ClockDrift(*both) for both in zip(first, last, strict=True)]


def offset_of(asked: int, answered: int, heard: int) -> ClockOffset:
    """Evaluates one round trip.

    Args:
        asked: When the question went, by the clock of who asked; ns.
        answered: When the answer went, by the other clock.
        heard: When it came, by the first clock.
    """
    return ClockOffset(answered - (asked + heard) // 2, (heard - asked + 1) // 2, answered)


def _ask(group: dist.ProcessGroup, rank: int) -> ClockOffset:
    box = torch.zeros(1, dtype=torch.int64)
    found = []
    for _ in range(_ROUND_TRIPS):
        asked = time.monotonic_ns()
        group.send([box], rank, 0).wait()
        group.recv([box], rank, 0).wait()
        found.append(offset_of(asked, int(box), time.monotonic_ns()))
    return min(found, key=lambda each: each.error_ns)


def _answer(group: dist.ProcessGroup) -> None:
    box = torch.zeros(1, dtype=torch.int64)
    for _ in range(_ROUND_TRIPS):
        group.recv([box], 0, 0).wait()
        box.fill_(time.monotonic_ns())
        group.send([box], 0, 0).wait()
