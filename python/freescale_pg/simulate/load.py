"""What the ranks have to do and to move in a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.exchange import AllReduce, Exchange, FromHolders, ToHolders
from freescale_pg.simulate.schedule import Compute, Flow, Stage, Traffic

FloatArray = npt.NDArray[np.float64]

# A holder says of each id whether the next batch has its row too, and whether the last one had: a
# byte each (docs/adr/0011-exact-overlap-by-holders.md).
_MASK_BYTES = 1


@dataclass(frozen=True)
class Sizes:
    """What a model moves.

    Attributes:
        vector_bytes: Of one embedding row.
        id_bytes: Of one id.
        bucket_bytes: Of each of DDP's buckets, in the order of the backward.
    """

    vector_bytes: float
    id_bytes: float
    bucket_bytes: tuple[float, ...] = ()


@dataclass(frozen=True)
class StepLoad:
    """One batch, by rank; all arrays have shape ``[W]``.

    Attributes:
        rows: Different embedding rows that a rank looks up.
        fresh: Those of them that the batch before had too, on any rank.
        awaited: Those of them that the batch after has too.
        seconds: What the rank computes, by stage, when nothing slows it down.
    """

    rows: FloatArray
    fresh: FloatArray
    awaited: FloatArray
    seconds: dict[Stage, FloatArray]


class Loads:
    """A training's batches, as a simulation asks for them.

    Args:
        sizes: What the model moves.
        batches: Of consecutive steps. Of the steps after the last one all rows are taken from the
            last, so that it does as much ahead as the others.

    Raises:
        ValueError: There is none.
    """

    def __init__(self, sizes: Sizes, batches: Sequence[StepLoad]) -> None:
        if not batches:
            raise ValueError("there are no batches to simulate")
        self.sizes = sizes
        self._batches = batches

    @property
    def steps(self) -> int:
        """Number of batches."""
        return len(self._batches)

    @property
    def buckets(self) -> int:
        """Number of DDP's buckets."""
        return len(self.sizes.bucket_bytes)

    def seconds(self, compute: Compute) -> FloatArray:
        """Returns how long each rank computes at full speed; shape ``[W]``."""
        return self._batch(compute.step).seconds[compute.stage] * compute.part

    def exchange(self, flow: Flow, *, is_split: bool) -> Exchange:
        """Returns what a collective moves.

        Args:
            flow: The collective.
            is_split: Whether rows that batches share travel by themselves.
        """
        batch, sizes = self._batch(flow.step), self.sizes
        first = flow.step == 0
        fresh = batch.rows if first or not is_split else batch.fresh
        awaited = batch.awaited if is_split else batch.rows
        if flow.traffic is Traffic.IDS:
            return ToHolders(batch.rows * sizes.id_bytes)
        if flow.traffic is Traffic.VECTORS:
            return FromHolders(fresh * sizes.vector_bytes)
        if flow.traffic is Traffic.EARLY_VECTORS:
            return FromHolders((batch.rows - fresh) * sizes.vector_bytes)
        if flow.traffic is Traffic.MASKS:
            both = batch.rows + self._batch(flow.step + 1).rows
            return FromHolders(both * _MASK_BYTES)
        if flow.traffic is Traffic.GRADIENTS:
            return ToHolders(awaited * sizes.vector_bytes)
        if flow.traffic is Traffic.LATE_GRADIENTS:
            return ToHolders((batch.rows - awaited) * sizes.vector_bytes)
        return AllReduce(sizes.bucket_bytes[flow.part])

    def _batch(self, step: int) -> StepLoad:
        return self._batches[min(step, len(self._batches) - 1)]
