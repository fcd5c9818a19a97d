"""Who gets which samples: in turn, and as the balanced sampler deals them out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from freescale_pg.balance.cost import CostModel
from freescale_pg.balance.sampler import BalancedBatchSampler

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """What each rank got of a global batch; shape ``[W]``.

    Attributes:
        tokens: Sum of its samples' lengths.
        cost: Sum of their costs, in the cost model's unit.
    """

    tokens: FloatArray
    cost: FloatArray


@dataclass(frozen=True)
class DealtBatch:
    """One global batch, dealt out twice.

    Attributes:
        in_turn: As torch's ``DistributedSampler`` does it: equally many samples, whatever they
            cost.
        balanced: By :class:`BalancedBatchSampler`; the same samples.
    """

    in_turn: Share
    balanced: Share


def deal(
    lengths: npt.NDArray[np.int64],
    ranks: int,
    samples_per_rank: int,
    cost_model: CostModel,
    steps: int,
    seed: int,
) -> Iterator[DealtBatch]:
    """Deals consecutive global batches of a shuffled data set out.

    Args:
        lengths: Of its samples, in tokens.
        ranks: World size.
        samples_per_rank: In each step.
        cost_model: From lengths to costs.
        steps: How many batches; when an epoch is over the next one begins.
        seed: Of the order.

    Raises:
        ValueError: There are too few samples for a global batch.
    """
    if len(lengths) < ranks * samples_per_rank:
        raise ValueError(
            f"{len(lengths)} lengths are too few for a global batch of {ranks} ranks ×"
            f" {samples_per_rank} samples = {ranks * samples_per_rank}"
        )
    sampler = BalancedBatchSampler(
        lengths,
        samples_per_rank,
        num_replicas=ranks,
        rank=0,
        seed=seed,
        drop_last=True,
        cost_model=cost_model,
        check_ranks=False,
    )
    in_turn = np.arange(ranks * samples_per_rank) % ranks
    for number in range(steps):
        epoch, step = divmod(number, len(sampler))
        sampler.set_epoch(epoch)
        batch = sampler.plan(step)
        tokens = lengths[batch.indices].astype(np.float64)
        yield DealtBatch(
            Share(_by_rank(in_turn, tokens, ranks), _by_rank(in_turn, batch.costs, ranks)),
            Share(_by_rank(batch.ranks, tokens, ranks), _by_rank(batch.ranks, batch.costs, ranks)),
        )


def _by_rank(owners: npt.NDArray[np.integer[Any]], values: FloatArray, ranks: int) -> FloatArray:
    return np.bincount(owners, weights=values, minlength=ranks).astype(np.float64)
