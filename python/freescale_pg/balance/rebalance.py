"""Correction of an assignment that has become uneven, moving few samples."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg._extension import _C
from freescale_pg.balance.cost import first_impossible
from freescale_pg.balance.global_batch import integer_costs


@dataclass(frozen=True)
class Rebalancing:
    """A new assignment.

    Attributes:
        ranks: New rank of each sample; int32, shape ``[n]``.
        moved: Places of the samples whose rank is new, ascending; int64, shape ``[moved]``.
        before: Load of the heaviest rank over the mean in the old assignment.
        after: The same in the new one.
    """

    ranks: npt.NDArray[np.int32]
    moved: npt.NDArray[np.int64]
    before: float
    after: float


def rebalance(
    costs: npt.ArrayLike,
    ranks: npt.ArrayLike,
    world_size: int,
    *,
    tolerance: float = 0.05,
    equal_counts: bool = True,
) -> Rebalancing:
    """Moves few samples between ranks until the heaviest is near the mean.

    Every exchange takes the sample from the heaviest rank, and the one given back by the lightest,
    that bring the two closest together. A pure function: all ranks that call it with the same
    arguments get the same result.

    Args:
        costs: Of each sample; finite, not negative, shape ``[n]``.
        ranks: Present rank of each sample, shape ``[n]``.
        world_size: Number of ranks.
        tolerance: How far the heaviest may be above the mean, as a part of that.
        equal_counts: Exchange sample for sample, so that the number on each rank stays.

    Raises:
        ValueError: A cost or rank is impossible, sizes differ, or ``tolerance`` is negative.
    """
    values = np.asarray(costs, dtype=np.float64)
    place = first_impossible(values)
    if place is not None:
        raise ValueError(
            f"costs[{place}] is {values[place]}; costs must be finite and not negative"
        )
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    old = np.asarray(ranks, dtype=np.int32)
    whole, _ = integer_costs(values)
    mean = int(whole.sum()) / world_size
    new = _C.rebalance(whole, world_size, old, math.floor(mean * (1 + tolerance)), equal_counts)
    return Rebalancing(
        new, np.flatnonzero(new != old), _peak(whole, old, mean), _peak(whole, new, mean)
    )


def _peak(costs: npt.NDArray[np.int64], ranks: npt.NDArray[np.int32], mean: float) -> float:
    return float(np.bincount(ranks, weights=costs).max()) / mean if mean > 0 else 1.0
