"""The order in which an epoch goes through the data, and how it is cut into global batches."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg._extension import _C


@dataclass(frozen=True)
class EpochOrder:
    """The global batches of all epochs; they do not depend on the number of ranks.

    Attributes:
        samples: Size of the data set.
        global_batch: Samples of all ranks together in a step.
        shuffle: Whether each epoch has an order of its own; else it is that of the data set.
        drop_last: Whether to drop the rest that does not fill a global batch.
        seed: Of the shuffled orders.
    """

    samples: int
    global_batch: int
    shuffle: bool
    drop_last: bool
    seed: int

    @property
    def steps(self) -> int:
        """Number of global batches in an epoch."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole if self.drop_last or not rest else whole + 1

    def is_whole(self, step: int) -> bool:
        """Whether a step has a full global batch.

        Raises:
            IndexError: There is no such step.
        """
        self._check(step)
        return (step + 1) * self.global_batch <= self.samples

    def indices(self, epoch: int, step: int) -> npt.NDArray[np.int64]:
        """Returns the places of a step's samples in the data set; int64, shape ``[n]``.

        Only the last step of an epoch can have less than ``global_batch``.

        Raises:
            IndexError: There is no such step.
        """
        self._check(step)
        first = step * self.global_batch
        count = min(self.global_batch, self.samples - first)
        if not self.shuffle:
            return np.arange(first, first + count, dtype=np.int64)
        return _C.permuted_indices(self.samples, self.seed, epoch, first, count)

    def _check(self, step: int) -> None:
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} does not exist, an epoch has {self.steps} steps")
