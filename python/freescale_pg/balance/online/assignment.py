"""Which rank each sample of a batch goes to that lies on the ranks already."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg._extension import _C
from freescale_pg.balance.global_batch import integer_costs
from freescale_pg.balance.imbalance import BatchBalance

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """A plan for the samples of all ranks, in the order of ranks and of their places there.

    Attributes:
        old: Rank that each came to; int32, shape ``[n]``.
        new: Rank that each goes to; int32, shape ``[n]``.
        balance: Loads as they came (``plain_peak``) and as planned.
    """

    old: npt.NDArray[np.int32]
    new: npt.NDArray[np.int32]
    balance: BatchBalance

    @property
    def moved(self) -> Integers:
        """Places of the samples that change rank, ascending; int64, shape ``[m]``."""
        return np.flatnonzero(self.new != self.old)


def assign(
    costs: npt.NDArray[np.float64], counts: Integers, tolerance: float, equal_counts: bool
) -> Assignment:
    """Moves few samples, so that no rank bears more than ``tolerance`` times the least possible.

    A pure function, in integers: all ranks come to the same plan. Nothing moves if the loads are
    that even already.

    Args:
        costs: Of each sample; finite, not negative, shape ``[n]``.
        counts: Samples on each rank; shape ``[world_size]``, sum ``n``.
        tolerance: 1 or more.
        equal_counts: Whether every rank keeps its number of samples.
    """
    world_size = len(counts)
    old = np.repeat(np.arange(world_size, dtype=np.int32), counts)
    if not len(costs):
        return Assignment(old, old, BatchBalance(0.0, 0.0, 0.0, 0.0))
    whole, exponent = integer_costs(costs)
    floor = floor_load(whole, counts, equal_counts)
    target = math.floor(floor * tolerance)
    before = after = _peak(whole, old)
    new = old
    if before > target:
        new = _C.rebalance(whole, world_size, old, target, equal_counts)
        after = _peak(whole, new)
    mean, *loads = (
        math.ldexp(load, -exponent)
        for load in (int(whole.sum()) / world_size, before, after, floor)
    )
    return Assignment(old, new, BatchBalance(mean, *loads))


def floor_load(costs: Integers, counts: Integers, equal_counts: bool) -> int:
    """Returns a bound on what the heaviest rank has to bear in any assignment.

    That is the mean, or the dearest sample; and if ranks keep their numbers of samples, the dearest
    with the cheapest that fill the smallest rank up, or the cheapest that fill the largest one.

    Args:
        costs: Of each sample, shape ``[n]``, one or more.
        counts: Samples on each rank, shape ``[world_size]``.
        equal_counts: Whether they stay.
    """
    mean = -(-int(costs.sum()) // len(counts))
    dearest = int(costs.max())
    if not equal_counts:
        return max(mean, dearest)
    cheapest = np.concatenate([[0], np.sort(costs).cumsum()])
    smallest = int(counts[counts > 0].min())
    return max(mean, dearest + int(cheapest[smallest - 1]), int(cheapest[counts.max()]))


def _peak(costs: Integers, ranks: npt.NDArray[np.int32]) -> int:
    # Not np.bincount, whose weights are floats: sums of up to 61 bits would be rounded.
    loads = np.zeros(int(ranks.max()) + 1, dtype=np.int64)
    np.add.at(loads, ranks, costs)
    return int(loads.max())
