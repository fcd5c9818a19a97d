"""A bound on what any assignment of a global batch can reach."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def least_peak(costs: npt.NDArray[np.int64], world_size: int) -> float:
    """A load that the heaviest rank cannot go below, equally many samples on each rank.

    The k dearest samples either lie on k ranks: then these hold the k · (b - 1) cheapest at least,
    for b samples per rank, and one of them has the mean of that or more. Or two of them share a
    rank: then it holds both and b - 2 more. This is tighter than the planner's floor, which is the
    case k = 1, where several dear samples compete for the cheapest.

    Args:
        costs: Integers, shape ``[n]``.
        world_size: Number of ranks; divides ``n``.
    """
    per_rank = len(costs) // world_size
    ascending = np.sort(costs)
    cheapest = np.concatenate([[0], np.cumsum(ascending)])
    dearest = ascending[::-1]
    k = np.arange(1, world_size + 1)
    apart = (np.cumsum(dearest)[:world_size] + cheapest[k * (per_rank - 1)]) / k
    together = np.full(world_size, np.inf)
    if per_rank > 1:
        together[1:] = dearest[k[1:] - 1] + dearest[k[1:] - 2] + cheapest[per_rank - 2]
    return max(float(costs.sum()) / world_size, float(np.minimum(apart, together).max()))
