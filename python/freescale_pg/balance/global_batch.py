"""One global batch and the rank that each of its samples goes to."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from freescale_pg._extension import _C
from freescale_pg.balance.imbalance import BatchBalance

# Costs become integers of up to so many bits, so that sums come out the same in any order. Two
# costs within 2^-40 of the largest are then the same, far below what a measurement can tell.
_COST_BITS = 40
# cpp/balance/planner.h, kLargestTotal.
_TOTAL_BITS = 61


@dataclass(frozen=True)
class GlobalBatch:
    """A plan for one step.

    Attributes:
        indices: Places of the samples in the data set, in the epoch's order, duplicates that pad
            the batch last; int64, shape ``[n]``.
        real: How many of them are not duplicates.
        ranks: The rank of each; int32, shape ``[n]``.
        costs: Of each, as the cost model says; float64, shape ``[n]``.
        world_size: Number of ranks.
        floor_load: What the heaviest rank has to bear in any assignment, in units of cost.
    """

    indices: npt.NDArray[np.int64]
    real: int
    ranks: npt.NDArray[np.int32]
    costs: npt.NDArray[np.float64]
    world_size: int
    floor_load: float

    def samples_of(self, rank: int) -> list[int]:
        """Returns a rank's samples in the epoch's order, duplicates last."""
        samples: list[int] = self.indices[self.ranks == rank].tolist()
        return samples

    def real_samples_of(self, rank: int) -> int:
        """Returns how many of a rank's samples are not duplicates."""
        return int(np.count_nonzero(self.ranks[: self.real] == rank))

    def loss_weight_of(self, rank: int) -> float:
        """Returns ``W·n_r/N``, see :meth:`BalancedBatchSampler.loss_weight`."""
        return self.world_size * self.real_samples_of(rank) / self.real

    @cached_property
    def balance(self) -> BatchBalance:
        """How unequal the loads are, and would be."""
        in_turn = np.arange(len(self.costs)) % self.world_size
        plain, planned = (
            np.bincount(ranks, weights=self.costs, minlength=self.world_size)
            for ranks in (in_turn, self.ranks)
        )
        mean = float(planned.sum()) / self.world_size
        return BatchBalance(mean, float(plain.max()), float(planned.max()), self.floor_load)


def plan_global_batch(
    indices: npt.NDArray[np.int64],
    costs: npt.NDArray[np.float64],
    world_size: int,
    *,
    equal_counts: bool,
    tokens: npt.NDArray[np.float64] | None = None,
    max_tokens_per_rank: int | None = None,
) -> GlobalBatch:
    """Deals a global batch out to the ranks.

    Args:
        indices: Places of the samples in the data set, shape ``[n]``; at least one.
        costs: Of each, shape ``[n]``; finite, not negative.
        world_size: Number of ranks.
        equal_counts: Whether every rank gets as many samples. If they do not come out even, or
            there are fewer samples than ranks, duplicates of the cheapest one fill the rest.
        tokens: Of each sample, shape ``[n]``; parts of a token count as one.
        max_tokens_per_rank: How many tokens a rank may hold; None: any number.

    Raises:
        ValueError: No assignment was found that keeps to ``max_tokens_per_rank``.
    """
    real = len(indices)
    per_rank = -(-real // world_size)
    padding = world_size * per_rank - real if equal_counts else max(0, world_size - real)
    if padding:
        fill = np.concatenate([np.arange(real), np.full(padding, costs.argmin())])
        indices, costs = indices[fill], costs[fill]
        tokens = None if tokens is None else tokens[fill]
    whole, exponent = integer_costs(costs)
    limited = None
    if max_tokens_per_rank is not None and tokens is not None:
        limited = np.ceil(tokens).astype(np.int64)
    ranks, floor = _C.plan_balance(
        whole, world_size, equal_counts, limited, max_tokens_per_rank or 0
    )
    return GlobalBatch(indices, real, ranks, costs, world_size, math.ldexp(floor, -exponent))


def integer_costs(costs: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], int]:
    """Returns costs as integers that keep their ratios, and the power of two they grew by.

    Args:
        costs: Finite, not negative, shape ``[n]``.
    """
    largest = float(costs.max())
    if largest == 0.0:
        return np.zeros(len(costs), dtype=np.int64), 0
    bits = min(_COST_BITS, _TOTAL_BITS - len(costs).bit_length())
    # A power of two, so that scaling is exact, and costs that are integers stay what they are.
    exponent = bits - math.frexp(largest)[1]
    return np.rint(np.ldexp(costs, exponent)).astype(np.int64), exponent
