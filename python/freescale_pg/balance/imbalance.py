"""How unequal the ranks' loads are: the heaviest over the mean, 1 when all are equal."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Batches that are kept one by one: a long epoch must not fill the memory.
_KEPT = 1024


@dataclass(frozen=True, slots=True)
class BatchBalance:
    """Loads of one global batch, in units of the cost model.

    Attributes:
        mean_load: Mean over the ranks.
        plain_peak: Load of the heaviest rank if the same samples were dealt out in turn, as
            ``DistributedSampler`` does.
        peak: Load of the heaviest rank as planned.
        floor_load: What the heaviest rank has to bear in any assignment.
    """

    mean_load: float
    plain_peak: float
    peak: float
    floor_load: float

    @property
    def before(self) -> float:
        """Heaviest over mean without balancing."""
        return _ratio(self.plain_peak, self.mean_load)

    @property
    def after(self) -> float:
        """Heaviest over mean as planned."""
        return _ratio(self.peak, self.mean_load)

    @property
    def floor(self) -> float:
        """Least possible ratio; above 1 where one sample dominates the batch."""
        return _ratio(self.floor_load, self.mean_load)


@dataclass(frozen=True)
class EpochBalance:
    """The batches of one epoch so far.

    A step takes as long as its heaviest rank, so ratios of the epoch are sums over the batches of
    the heaviest rank's loads, divided by the sum of mean loads.

    Attributes:
        epoch: Number of the epoch.
        steps: Batches counted.
        before: Heaviest over mean without balancing.
        after: The same as planned.
        floor: The same for the bound of each batch.
        batches: ``before``, ``after`` and ``floor`` of the last batches, up to 1024 of them, the
            last one last; float64, shape ``[batches, 3]``.
    """

    epoch: int
    steps: int
    before: float
    after: float
    floor: float
    batches: npt.NDArray[np.float64]


def _ratio(peak: float, mean: float) -> float:
    # A batch that costs nothing is balanced.
    return max(1.0, peak / mean) if mean > 0 else 1.0


class EpochTally:
    """Adds the batches of an epoch up."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._steps = 0
        self._sums = np.zeros(4)  # mean, plain peak, peak, floor
        self._last: list[tuple[float, float, float]] = []

    def add(self, batch: BatchBalance) -> None:
        """Counts a batch."""
        self._steps += 1
        self._sums += (batch.mean_load, batch.plain_peak, batch.peak, batch.floor_load)
        self._last.append((batch.before, batch.after, batch.floor))
        # Halved now and then instead of shifted every time.
        if len(self._last) >= 2 * _KEPT:
            del self._last[:-_KEPT]

    def total(self) -> EpochBalance:
        """Returns the batches counted so far; every ratio is 1 if there are none."""
        mean, plain, peak, floor = self._sums.tolist()
        batches = np.array(self._last[-_KEPT:], dtype=np.float64).reshape(-1, 3)
        ratios = (_ratio(plain, mean), _ratio(peak, mean), _ratio(floor, mean))
        return EpochBalance(self._epoch, self._steps, *ratios, batches)
