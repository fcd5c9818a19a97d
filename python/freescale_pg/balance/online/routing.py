"""From a plan for all ranks: what one rank sends, receives, and how it orders what it then has."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg.balance.online.assignment import Assignment

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Route:
    """What one rank does in an exchange. All places are int64, ascending for each rank.

    Attributes:
        kept: Places of its samples that stay.
        sends: For each rank, places of the own samples that go there.
        arrivals: For each rank, places that the samples coming from there had in its batch.
        order: The samples that it then has, as indices into those kept followed by the arrivals of
            rank 0, 1, …; None: in just this order.
    """

    kept: Integers
    sends: list[Integers]
    arrivals: list[Integers]
    order: Integers | None = None


class Routing:
    """The ways of all samples of one batch, there and back.

    A rank's new batch is what it keeps, in the old order, and then what comes from rank 0, 1, ….

    Args:
        assignment: The plan.
        counts: Samples that came to each rank, shape ``[world_size]``.
        rank: Whose routes these are.
    """

    def __init__(self, assignment: Assignment, counts: Integers, rank: int) -> None:
        old, new = assignment.old, assignment.new
        self._rank = rank
        self._ranks = range(len(counts))
        first = np.concatenate([[0], counts.cumsum()])
        places = np.arange(len(old)) - first[old]
        # By new rank, those that stay before the others; a stable sort keeps the rest in order.
        by_new = np.lexsort((new != old, new))
        self.new_counts = np.bincount(new, minlength=len(counts))
        new_first = np.concatenate([[0], self.new_counts.cumsum()])
        new_places = np.empty_like(places)
        new_places[by_new] = np.arange(len(new)) - new_first[new[by_new]]
        here = by_new[new_first[rank] : new_first[rank + 1]]
        came = slice(first[rank], first[rank + 1])
        # Of the samples that this rank has afterwards, and of those that came to it.
        self.origin_ranks = old[here].astype(np.int64)
        self.origin_places = places[here]
        self._goal_ranks = new[came].astype(np.int64)
        self._goal_places = new_places[came]

    def there(self) -> Route:
        """From the batch that came to the balanced one."""
        goals = self._goal_ranks
        sends = [np.flatnonzero(goals == rank) for rank in self._ranks]
        arrivals = [self.origin_places[self.origin_ranks == rank] for rank in self._ranks]
        return self._route(sends, arrivals, None)

    def back(self) -> Route:
        """From the balanced batch to the one that came."""
        sends = [np.flatnonzero(self.origin_ranks == rank) for rank in self._ranks]
        arrivals = [self._goal_places[self._goal_ranks == rank] for rank in self._ranks]
        # Where each sample of the old batch stands among those kept and those that arrive.
        by_arrival = np.lexsort((self._goal_ranks, self._goal_ranks != self._rank))
        order = np.empty_like(by_arrival)
        order[by_arrival] = np.arange(len(by_arrival))
        return self._route(sends, arrivals, order)

    def _route(
        self, sends: list[Integers], arrivals: list[Integers], order: Integers | None
    ) -> Route:
        nothing = np.empty(0, dtype=np.int64)
        kept, sends[self._rank], arrivals[self._rank] = sends[self._rank], nothing, nothing
        return Route(kept, sends, arrivals, order)
