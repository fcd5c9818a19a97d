"""How far the clocks of the ranks are apart."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

# The quickest of so many round trips is the one that waited least on its way.
_ROUND_TRIPS = 16


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What one rank's monotonic clock is ahead of that of the group's first rank.

    Attributes:
        offset_ns: Ahead by so much, 0 where the clocks may be the same one.
        error_ns: At most so much more or less: half of the quickest round trip.
    """

    offset_ns: int
    error_ns: int


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
    return [ClockOffset(0, 0), *others]


def offset_of(asked: int, answered: int, heard: int) -> ClockOffset:
    """Evaluates one round trip.

    Args:
        asked: When the question went, by the clock of who asked; ns.
        answered: When the answer went, by the other clock.
        heard: When it came, by the first clock.
    """
    offset, error = answered - (asked + heard) // 2, (heard - asked + 1) // 2
    # Of two processes of one host it is the same clock. Others' are hardly so near by chance.
    return ClockOffset(0 if abs(offset) <= error else offset, error)


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
