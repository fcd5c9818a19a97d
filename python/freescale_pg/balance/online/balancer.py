"""Equal load for all ranks where lengths are known only when a batch arrives."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from freescale_pg._agreement import raise_disagreement
from freescale_pg._group import member_group
from freescale_pg.balance.cost import first_impossible
from freescale_pg.balance.imbalance import EpochTally
from freescale_pg.balance.online.announcement import (
    Announcement,
    Announcements,
    Gathering,
    State,
    digest,
)
from freescale_pg.balance.online.assignment import Assignment, assign
from freescale_pg.balance.online.balanced_batch import BalancedBatch
from freescale_pg.balance.online.columns import empty_column, sample_bytes
from freescale_pg.balance.online.exchange import exchange
from freescale_pg.balance.online.routing import Route, Routing
from freescale_pg.balance.online.structure import (
    Structure,
    TakenApart,
    column_types,
    describe,
    put_together,
    take_apart,
)

# A batch to the costs of its samples: numbers of shape [n], finite and not negative.
CostFunction: TypeAlias = Callable[[Any], npt.ArrayLike | torch.Tensor]

# Samples of a rank that the first gather has room for: about as many bytes as are sent without a
# handshake.
_FIRST_CAPACITY = 128


@dataclass(frozen=True)
class OnlineStats:
    """All batches of all ranks so far, since the balancer was made.

    A step takes as long as its heaviest rank, so imbalances are sums over the batches of the
    heaviest rank's loads, divided by the sum of mean loads; 1 is balanced.

    Attributes:
        batches: Steps.
        skipped: Steps in which no sample moved.
        samples: That came.
        samples_moved: To another rank.
        bytes_moved: Of those samples.
        before: Heaviest over mean load as the samples came.
        after: The same after balancing.
        floor: The same for a bound that no assignment falls below.
    """

    batches: int
    skipped: int
    samples: int
    samples_moved: int
    bytes_moved: int
    before: float
    after: float
    floor: float


class PlannedBatch:
    """What :meth:`OnlineBalancer.plan_async` returns: a batch whose costs are under way."""

    def __init__(
        self,
        batch: Any,
        parts: TakenApart | None,
        structure: Structure | None,
        problem: Exception | None,
        gathering: Gathering,
    ) -> None:
        self.batch = batch
        self.parts = parts
        self.structure = structure
        self.problem = problem
        self.gathering = gathering
        self.announced: Announcements | None = None
        self.is_applied = False


class OnlineBalancer:
    """Moves few samples between ranks, so that all have about the same to do in each step.

    For streams whose lengths nobody knows beforehand; otherwise :class:`BalancedBatchSampler` does
    better, without a message. In every step the ranks tell each other what their samples cost, come
    to the same plan each by itself, and exchange the fewest samples that bring the heaviest rank
    within ``tolerance`` of the least possible: one small gather that travels while the batch before
    is trained on, and one exchange of what moves, both at LOW priority on a freescale group. Where
    loads are even already, or one sample outweighs all, nothing moves and nothing is exchanged. The
    global batch and so the training stay what they are.

    A batch is a tensor, a :class:`Jagged`, a nested tensor with the layout torch.jagged, a
    KeyedJaggedTensor of TorchRec, or any nesting of dicts (with keys that are strings or integers,
    in the same order on all ranks), lists, tuples and named tuples of these; None may stand in
    place of any and stays. All tensors lie on the CPU, do not require gradients, and have the
    samples as their first dimension; dtypes and the other dimensions are the same on all ranks
    (pad to a fixed length, or not at all). Anything else is refused, since it might belong to a
    sample and would be left behind: take numbers and strings out of the batch before.

    All members of the group make the same calls in the same order. One whose stream is over goes on
    with None until all are, and gets batches without samples (or, with ``counts="uneven"``, some of
    the others'). :meth:`balance` does all that.

    Args:
        group: The ranks that share the data; None: the default group. Of any backend that moves
            tensors on the CPU.
        cost_fn: Returns what each sample of a batch costs: a tensor, array or list of shape
            ``[n]``, finite and not negative, in a unit that is the same on all ranks. Such as the
            lengths, or a cost model of them.
        tolerance: How heavy the heaviest rank may be, as a multiple of the least possible: the mean
            load, or more where a sample dominates. 1 or more.
        counts: ``"equal"``: samples are exchanged one for one, so every rank keeps its number.
            ``"uneven"``: numbers may change, which moves fewer samples; losses must then be
            multiplied by :attr:`BalancedBatch.loss_weight`.

    Raises:
        ValueError: An argument is out of range, there is no process group, or this rank is not in
            it.

    Example:
        >>> cost = Quadratic(1, 1 / 1024)
        >>> balancer = OnlineBalancer(None, lambda batch: cost(batch["lengths"].double().numpy()))
        >>> for balanced in balancer.balance(loader):
        ...     losses = model(balanced.batch)
        ...     (losses.sum() / max(len(losses), 1) * balanced.loss_weight).backward()
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        cost_fn: CostFunction,
        tolerance: float = 1.05,
        counts: Literal["equal", "uneven"] = "equal",
    ) -> None:
        self._group = member_group(group)
        if not callable(cost_fn):
            raise TypeError(f"cost_fn must be a function of a batch, got {cost_fn!r}")
        if not (math.isfinite(tolerance) and tolerance >= 1):
            raise ValueError(f"tolerance must be finite and 1 or more, got {tolerance}")
        if counts not in ("equal", "uneven"):
            raise ValueError(f"counts must be 'equal' or 'uneven', got {counts!r}")
        self._cost_fn = cost_fn
        self._tolerance = float(tolerance)
        self._equal_counts = counts == "equal"
        self._settings: dict[str, object] = {"tolerance": self._tolerance, "counts": counts}
        self._settings_digest = digest(self._settings)
        self._capacity = _FIRST_CAPACITY
        self._structure: Structure | None = None
        self._tally = EpochTally(0)
        self._skipped = 0
        self._samples = 0
        self._samples_moved = 0
        self._bytes_moved = 0

    def balance(self, batches: Iterable[Any]) -> Iterator[BalancedBatch]:
        """Yields balanced batches until the streams of all ranks are over; collective.

        Each next batch is fetched, and its gather begun, before the present one is handed out. All
        ranks must iterate to the end, or stop after the same batch.

        Args:
            batches: This rank's stream, such as a DataLoader; of any number of batches, none
                included.

        Raises:
            RanksDisagreeError: As :meth:`apply` does.
        """
        stream = iter(batches)
        ahead = self.plan_async(next(stream, None))
        while not self._is_end(ahead):
            planned, ahead = ahead, self.plan_async(next(stream, None))
            balanced = self.apply(planned)
            assert balanced is not None
            yield balanced

    def plan_async(self, batch: Any | None) -> PlannedBatch:
        """Begins to tell the other ranks what the samples of a batch cost; collective.

        Does not wait for them. What is wrong with the batch :meth:`apply` says, on all ranks.

        Args:
            batch: Must not be changed before :meth:`apply`. None: this rank's stream is over.
        """
        own, parts, problem = self._over(), None, None
        if batch is not None:
            try:
                own, parts = self._examine(batch)
                self._structure = parts.structure
            # Whatever it is: the other ranks wait for this one.
            except Exception as error:
                own, problem = dataclasses.replace(self._over(), state=State.PROBLEM), error
        gathering = Gathering(own, self._capacity, self._group)
        return PlannedBatch(batch, parts, self._structure, problem, gathering)

    def apply(self, planned: PlannedBatch) -> BalancedBatch | None:
        """Exchanges samples and returns this rank's new batch; collective.

        Args:
            planned: From :meth:`plan_async`; each once, in the same order on all ranks.

        Returns:
            The batch; None if the streams of all ranks are over.

        Raises:
            RanksDisagreeError: On all ranks, if the costs or the batch of one are impossible, or if
                structures, dtypes, shapes or settings differ. Names ranks and values. The balancer
                can be used on.
            RuntimeError: A rank is lost, or the group's timeout has passed.
            ValueError: ``planned`` was applied before.
        """
        if planned.is_applied:
            raise ValueError("this batch was applied before: plan_async() begins another one")
        planned.is_applied = True
        if self._is_end(planned):
            return None
        announced = self._finish(planned)
        structure = self._agreed_structure(planned, announced)
        assignment = assign(
            np.concatenate(announced.costs), announced.counts, self._tolerance, self._equal_counts
        )
        self._count(assignment, announced)
        moved = len(assignment.moved)
        routing = Routing(assignment, announced.counts, self._group.rank())
        route = routing.there() if moved else None
        return BalancedBatch(
            batch=self._move(planned, structure, route, announced),
            origin_ranks=torch.from_numpy(routing.origin_ranks),
            origin_places=torch.from_numpy(routing.origin_places),
            loss_weight=_loss_weight(routing.new_counts, self._group.rank()),
            samples_moved=moved,
            _routing=routing,
            _group=self._group,
        )

    def stats(self) -> OnlineStats:
        """Returns what was balanced so far; the same on all ranks."""
        total = self._tally.total()
        return OnlineStats(
            batches=total.steps,
            skipped=self._skipped,
            samples=self._samples,
            samples_moved=self._samples_moved,
            bytes_moved=self._bytes_moved,
            before=total.before,
            after=total.after,
            floor=total.floor,
        )

    def recent(self) -> npt.NDArray[np.float64]:
        """Returns ``before``, ``after`` and ``floor`` of the last batches, the same on all ranks.

        As of :class:`OnlineStats`, but of single batches: up to 1024, the last one last; float64,
        shape ``[batches, 3]``.
        """
        return self._tally.total().batches

    def _over(self) -> Announcement:
        known = 0 if self._structure is None else digest(self._structure)
        nothing = np.empty(0, dtype=np.int64)
        return Announcement(State.OVER, known, self._settings_digest, np.empty(0), nothing)

    def _examine(self, batch: Any) -> tuple[Announcement, TakenApart]:
        parts = take_apart(batch)
        own = Announcement(
            state=State.BATCH,
            structure=digest(parts.structure),
            settings=self._settings_digest,
            costs=self._costs_of(batch, parts.samples),
            sizes=sample_bytes(parts.columns, parts.samples).numpy(),
        )
        return own, parts

    def _costs_of(self, batch: Any, samples: int) -> npt.NDArray[np.float64]:
        if samples == 0:
            return np.empty(0)
        costs = self._cost_fn(batch)
        if isinstance(costs, torch.Tensor):
            costs = costs.detach().to("cpu", torch.float64).numpy()
        values = np.asarray(costs, dtype=np.float64)
        if values.shape != (samples,):
            raise ValueError(
                f"cost_fn returned shape {list(values.shape)} for a batch of {samples} samples"
            )
        place = first_impossible(values)
        if place is not None:
            raise ValueError(
                f"cost_fn gives {values[place]} for sample {place} of {samples}; costs must be"
                " finite and not negative"
            )
        return values

    def _finish(self, planned: PlannedBatch) -> Announcements:
        if planned.announced is None:
            planned.announced = planned.gathering.finish()
            self._capacity = max(self._capacity, planned.gathering.capacity)
        return planned.announced

    def _is_end(self, planned: PlannedBatch) -> bool:
        return len(self._finish(planned).of_state(State.OVER)) == self._group.size()

    def _agreed_structure(self, planned: PlannedBatch, announced: Announcements) -> Structure:
        """Returns the structure of all batches; all ranks decide alike, by what was announced."""
        if len(announced.of_state(State.PROBLEM)):
            raise_disagreement("the ranks' batches", None, planned.problem, self._group)
        if len(np.unique(announced.settings)) > 1:
            raise_disagreement("the ranks' balancers", self._settings, None, self._group)
        holders = announced.of_state(State.BATCH)
        if len(np.unique(announced.structures[holders])) > 1:
            facts = None if planned.parts is None else dict(describe(planned.parts.structure))
            raise_disagreement("the ranks' batches", facts, None, self._group)
        return self._learned_structure(planned, announced, int(holders[0]))

    def _learned_structure(
        self, planned: PlannedBatch, announced: Announcements, holder: int
    ) -> Structure:
        """A rank whose stream is over may have seen no such batch, or none at all."""
        if (announced.structures != announced.structures[holder]).any():
            told: list[Structure | None] = [None] * self._group.size()
            own = planned.structure if self._group.rank() == holder else None
            dist.all_gather_object(told, own, group=self._group)
            self._structure = planned.structure = told[holder]
        assert planned.structure is not None
        return planned.structure

    def _move(
        self,
        planned: PlannedBatch,
        structure: Structure,
        route: Route | None,
        announced: Announcements,
    ) -> Any:
        """Returns the new batch; route: None where no sample moves on any rank."""
        if route is None and planned.parts is not None:
            return planned.batch
        types = column_types(structure)
        columns = (
            [empty_column(type) for type in types]
            if planned.parts is None
            else planned.parts.columns
        )
        if route is not None:
            columns = exchange(columns, types, route, announced, self._group)
        return put_together(structure, columns)

    def _count(self, assignment: Assignment, announced: Announcements) -> None:
        moved = assignment.moved
        self._tally.add(assignment.balance)
        self._skipped += not len(moved)
        self._samples += len(assignment.old)
        self._samples_moved += len(moved)
        self._bytes_moved += int(np.concatenate(announced.sizes)[moved].sum())


def _loss_weight(counts: npt.NDArray[np.int64], rank: int) -> float:
    total = int(counts.sum())
    return len(counts) * int(counts[rank]) / total if total else 0.0
