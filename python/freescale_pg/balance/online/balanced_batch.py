"""A batch after balancing, and the way back of what is computed from it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from freescale_pg._agreement import raise_disagreement
from freescale_pg.balance.online.announcement import (
    Announcement,
    Announcements,
    Gathering,
    State,
    digest,
)
from freescale_pg.balance.online.columns import sample_bytes
from freescale_pg.balance.online.exchange import exchange
from freescale_pg.balance.online.routing import Routing
from freescale_pg.balance.online.structure import (
    TakenApart,
    column_types,
    describe,
    put_together,
    take_apart,
)


@dataclass(frozen=True, eq=False)
class BalancedBatch:
    """This rank's share of what all ranks came with.

    Attributes:
        batch: Of the structure that came; with no samples at all if this rank has none. Where no
            sample moved on any rank, the very object that was given.
        origin_ranks: Rank in the group that each sample came to; int64, shape ``[n]``. The own
            samples come first, then those of rank 0, 1, ….
        origin_places: Its place in that rank's batch; int64, shape ``[n]``.
        loss_weight: ``W·n_r/N`` for n_r of N samples on this one of W ranks: what this rank's mean
            loss must be multiplied by, so that the mean over ranks is that over all samples. 1 if
            all have as many; 0 without samples, whose mean must not be taken: it is NaN.
        samples_moved: On all ranks together.
    """

    batch: Any
    origin_ranks: torch.Tensor
    origin_places: torch.Tensor
    loss_weight: float
    samples_moved: int
    _routing: Routing = field(repr=False)
    _group: dist.ProcessGroup = field(repr=False)

    def send_back(self, results: object) -> Any:
        """Returns the results of the samples that came to this rank, in their order; collective.

        Without any message if no sample was moved; then a mistake is an error here alone.

        Args:
            results: Of the samples of ``batch``, in its order: whatever can be a batch, such as a
                tensor of shape ``[n, …]``, of the same structure on all ranks. Detached, and on the
                CPU.

        Raises:
            RanksDisagreeError: On all ranks, if the structures differ, or one has other than n
                results or some that cannot be a batch.
            TypeError, ValueError: The same of this rank, if no sample was moved.
        """
        parts, problem = self._take_results_apart(results)
        if self.samples_moved == 0:
            if problem is not None:
                raise problem
            return results
        gathering = Gathering(
            _announce_results(parts), int(self._routing.new_counts.max()), self._group
        )
        announced = gathering.finish()
        self._check(announced, parts, problem)
        assert parts is not None
        columns = exchange(
            parts.columns,
            column_types(parts.structure),
            self._routing.back(),
            announced,
            self._group,
        )
        return put_together(parts.structure, columns)

    def _take_results_apart(
        self, results: object
    ) -> tuple[TakenApart | None, ValueError | TypeError | None]:
        try:
            parts = take_apart(results, "results")
        except (TypeError, ValueError) as error:
            return None, error
        if parts.samples != len(self.origin_ranks):
            return None, ValueError(
                f"{parts.samples} results, but the batch has {len(self.origin_ranks)} samples"
            )
        return parts, None

    def _check(
        self, announced: Announcements, parts: TakenApart | None, problem: Exception | None
    ) -> None:
        differ = len(np.unique(announced.structures)) > 1
        if not differ and not len(announced.of_state(State.PROBLEM)):
            return
        facts = None if parts is None else dict(describe(parts.structure, "results"))
        raise_disagreement("the ranks' results", facts, problem, self._group)


def _announce_results(parts: TakenApart | None) -> Announcement:
    if parts is None:
        return Announcement(State.PROBLEM, 0, 0, np.empty(0), np.empty(0, dtype=np.int64))
    sizes = sample_bytes(parts.columns, parts.samples).numpy()
    return Announcement(State.BATCH, digest(parts.structure), 0, np.zeros(parts.samples), sizes)
