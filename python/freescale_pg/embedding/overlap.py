"""Only what consecutive batches share stays on the critical path.

A row that batch N+1 needs and batch N does not can be sent while N is trained on: N will not change
it. A gradient of N for a row that N+1 does not need can be applied while N+1 is trained on: N+1
will not read it. Only rows and gradients of rows that both need must wait for each other. Every row
sees the same reads and updates in the same order as without overlap, so the training is the same to
the bit (the second technique of FreeScale, arXiv 2604.24073; TorchRec has it for CUDA).

What holds, in the words of this module: for each batch N the holders of rows know which of them
batch N-1 needed (*fresh* rows: those that it may have changed) and which N+1 will (*awaited* ones).
The others can travel early, or late.

    step N:  begin       apply gradients N-1 of awaited rows; send fresh vectors N    URGENT
                         learn what N and N+1 share, and tell                         HIGH
             (forward)   meanwhile: apply the late gradients N-1, when they have come;
                         then send the other vectors N+1                              LOW
             look_ahead  send the ids of N+2                                          LOW
             (backward)
             end         send gradients N of awaited rows                             HIGH
                         send the late gradients N                                    BACKGROUND

What is to be done meanwhile is done by a thread that lives from begin to end, so that it is not
held up by the model. It touches rows that the step does not.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from freescale_pg._priority import Priority
from freescale_pg.embedding.background import Background
from freescale_pg.embedding.exchange import Incoming, State
from freescale_pg.embedding.lookup import Ids
from freescale_pg.embedding.request import Demand, Request, Selection
from freescale_pg.embedding.sharded_embedding import (
    ShardedEmbedding,
    ShardedEmbeddingCollection,
    next_steps,
)

# Ids of a single table, or by feature of a collection; see EmbeddingOverlap.prefetch.
Ahead: TypeAlias = Ids | Mapping[str, Ids]

# Which entries of this rank's request, and of the others' demand.
_Both: TypeAlias = tuple[Selection | None, Selection | None]


@dataclass
class _Batch:
    """A batch between its announcement and its last gradient.

    Attributes:
        request: None: the end, or a problem.
        problem: Why there is no request.
        priority: Of its ids: URGENT where the next step waits for them.
        header: What the others announced.
        ids: What they ask for; None: not sent yet.
        demand: The same, sorted; None: not known yet.
        fresh, settled: Entries whose rows the batch before may change, and the others. None for
            both: it is not known, so all are fresh.
        early: Vectors of the settled entries, on their way.
        urgent: Vectors of the fresh ones.
        vectors: By table.
    """

    request: Request | None
    problem: Exception | None
    priority: Priority
    header: Incoming
    ids: Incoming | None = None
    demand: Demand | None = None
    fresh: _Both | None = None
    settled: _Both | None = None
    early: Incoming | None = None
    urgent: Incoming | None = None
    vectors: list[Tensor] = field(default_factory=list)


@dataclass
class _Boundary:
    """What a batch shares with the next one.

    Attributes:
        awaited_rows, fresh_rows: Of this batch's and of the next one's rows, by table; bool.
        awaited_told, fresh_told: What the holders say of this rank's entries, on its way.
    """

    awaited_rows: list[Tensor]
    fresh_rows: list[Tensor]
    awaited_told: Incoming
    fresh_told: Incoming


@dataclass
class _Gradients:
    """Gradients on their way to the holders of the rows."""

    coming: Incoming
    demand: Demand
    selection: Selection | None
    of_rows: list[Tensor] | None
    lr: float
    steps: list[int]


class EmbeddingOverlap:
    """Fetches the rows of later batches behind the present one, without changing the training.

    Give it the ids of batches ahead with :meth:`prefetch`, oldest first, and call :meth:`begin`,
    :meth:`look_ahead` and :meth:`end` around forward and backward. Between begin and end, look-ups
    of the embedding are served from what was fetched, any number of them. :class:`OverlapPipeline`
    makes all these calls.

    One batch should be prefetched when a step begins, beside the present one, and the next one soon
    after: then ids travel two steps ahead. With none the step is as without overlap. All ranks make
    the same calls in the same order.

    It holds the vectors of two batches, and ids of three: beside what one batch needs without
    overlap, (distinct ids) · (dim · 4 bytes + 20) for each batch ahead.

    Args:
        embedding: With an optimizer of its own. Gradients that come late are applied with the
            learning rate of their step.

    Raises:
        ValueError: The embedding has no optimizer.
        RuntimeError: Another overlap of the embedding was not detached.
    """

    def __init__(self, embedding: ShardedEmbedding | ShardedEmbeddingCollection) -> None:
        if embedding.optimizer is None:
            raise ValueError(
                "overlap needs an embedding that applies its gradients itself: give it an optimizer"
            )
        self._embedding = embedding
        self._exchange = embedding.exchange
        self._queue: deque[_Batch] = deque()
        self._current: _Batch | None = None
        self._boundary: _Boundary | None = None
        self._urgent_gradients: _Gradients | None = None
        self._late_gradients: _Gradients | None = None
        self._meanwhile: Background | None = None
        self._is_attached = True
        embedding.attach(self)

    @property
    def prefetched(self) -> int:
        """Batches that were prefetched and have not begun."""
        return len(self._queue)

    def prefetch(self, *ids: Ahead | None) -> None:
        """Asks for the rows of a batch that comes later; collective.

        What is wrong with the ids is said when the batch begins, on all ranks.

        Args:
            ids: All look-ups of the batch: tensors or ``Jagged`` for a :class:`ShardedEmbedding`,
                dicts of them for a collection. A single None: there are no more batches, which all
                ranks must say of the same one.

        Raises:
            RuntimeError: After :meth:`detach`, or a rank is lost.
        """
        if len(ids) == 1 and ids[0] is None:
            self._announce(State.OVER)
            return
        request, problem = self._request([each for each in ids if each is not None])
        self._announce(State.BATCH if problem is None else State.PROBLEM, request, problem)

    def prefetch_failed(self, problem: Exception) -> None:
        """Says, in place of :meth:`prefetch`, that this rank could not get its batch; collective.

        Then that batch's :meth:`begin` raises an error on all ranks.

        Args:
            problem: What all ranks are told.

        Raises:
            RuntimeError: After :meth:`detach`, or a rank is lost.
        """
        self._announce(State.PROBLEM, problem=problem)

    def begin(self) -> bool:
        """Begins the step of the oldest prefetched batch; collective.

        Returns:
            Whether there is one; False: all ranks have said that there are no more.

        Raises:
            RuntimeError: None was prefetched, the last step did not end; or a rank is lost.
            RanksDisagreeError: On all ranks, if the ids of one are impossible, or if only some have
                another batch.
        """
        if self._current is not None:
            raise RuntimeError("begin() before the end() of the step before")
        if not self._queue:
            raise RuntimeError("begin() without a prefetched batch")
        batch = self._queue.popleft()
        if not self._knows_demand(batch):
            return self._exchange.check(batch.header.wait(), batch.problem)
        self._current = batch
        self._apply(self._take_urgent())
        batch.urgent = self._fetch(batch)
        self._boundary = self._compare(batch)
        self._meanwhile = Background(self._fetch_next)
        self._store(batch, batch.urgent)
        return True

    def look_ahead(self) -> None:
        """Sends the ids of the batch after the next one; collective. After the forward.

        Raises:
            RuntimeError: No step has begun, or a rank is lost.
        """
        self._present("look_ahead")
        if self._queue:
            self._send_ids(self._queue[-1])

    def end(self) -> None:
        """Sends the gradients; collective. After the backward, before the dense optimizer.

        Raises:
            RuntimeError: No step has begun, or a rank is lost.
        """
        batch = self._present("end")
        self._join()
        assert batch.request is not None and batch.demand is not None
        gradients = [
            torch.zeros_like(vectors) if vectors.grad is None else vectors.grad
            for vectors in batch.vectors
        ]
        awaited, others, rows = self._awaited(batch)
        steps = next_steps(self._embedding.shards)
        self._urgent_gradients = self._give_back(batch, gradients, awaited, rows, steps)
        if others is not None:
            assert rows is not None
            self._late_gradients = self._give_back(
                batch, gradients, others, [~each for each in rows], steps, Priority.BACKGROUND
            )
        self._current = self._boundary = None

    def settle(self) -> None:
        """Waits for and applies all gradients of the steps that have ended; collective.

        Then the shards are what they would be without overlap. What was prefetched stays good.
        """
        self._join()
        self._apply(self._take_late())
        self._apply(self._take_urgent())

    def reset(self) -> None:
        """Gives up the step that has begun, and what was prefetched, and settles; collective.

        After an error in a step, on all ranks, in forward or in backward. The rows keep what all
        ended steps made of them.
        """
        if self._current is not None:
            # What one rank has sent before its error, all must have.
            self.look_ahead()
        self._join()
        dropped = [*self._queue] if self._current is None else [self._current, *self._queue]
        boundary, self._boundary, self._current = self._boundary, None, None
        self._queue.clear()
        self.settle()
        # Nothing may be on its way into memory that is given back.
        for batch in dropped:
            for coming in (batch.header, batch.ids, batch.early, batch.urgent):
                if coming is not None:
                    coming.wait()
        if boundary is not None:
            boundary.awaited_told.wait()
            boundary.fresh_told.wait()

    def detach(self) -> None:
        """Resets, and lets the embedding fetch for itself again; collective."""
        try:
            self.reset()
        finally:
            self._let_go()

    def abandon(self) -> None:
        """Settles as far as possible, and gives up the rest without waiting for any other rank.

        For errors that may not have come on all ranks. The gradients of steps that have ended are
        on their way already, so they are applied unless a rank is lost.
        """
        try:
            self.settle()
        finally:
            self._queue.clear()
            self._current = self._boundary = None
            self._let_go()

    def serve(
        self, inputs: Mapping[str, Ids], weights: Mapping[str, Tensor] | None
    ) -> dict[str, Tensor] | None:
        """Returns the result of a look-up within a step; for the embedding.

        Raises:
            ValueError, TypeError: It is impossible, or has ids that were not prefetched.
        """
        batch = self._current
        if batch is None:
            return None
        assert batch.request is not None
        lookups = self._embedding.parse(inputs, weights)
        device = self._embedding.shards[0].weight.device
        for lookup in lookups:
            lookup.check(device)
        return self._embedding.result(lookups, batch.request, batch.vectors)

    def _let_go(self) -> None:
        self._is_attached = False
        self._embedding.detach(self)

    # --- Ids -------------------------------------------------------------------------------------

    def _request(self, ids: Sequence[Ahead]) -> tuple[Request | None, Exception | None]:
        try:
            lookups = [self._embedding.parse_ahead(each) for each in ids]
            return self._embedding.request(lookups), None
        # Whatever it is: the other ranks wait for this one.
        except Exception as error:
            return None, error

    def _announce(
        self, state: State, request: Request | None = None, problem: Exception | None = None
    ) -> None:
        if not self._is_attached:
            raise RuntimeError("prefetch() after detach()")
        if self._queue:
            last = self._queue[-1]
            self._send_ids(last)
            if self._exchange.is_over(last.header.wait()):
                # Ranks that are over ask for nothing more, so neither may the others.
                self._queue.append(last)
                return
        awaited = not self._queue and self._current is None
        priority = Priority.URGENT if awaited else Priority.LOW
        header = self._exchange.announce(request, state, priority)
        self._queue.append(_Batch(request, problem, priority, header))

    def _send_ids(self, batch: _Batch) -> None:
        """Sends ids, as soon as it is known how many come, and that all ranks have some."""
        header = batch.header.wait()
        if batch.ids is None and self._exchange.all_have_batches(header):
            assert batch.request is not None
            batch.ids = self._exchange.ask(batch.request, header, batch.priority)

    def _knows_demand(self, batch: _Batch) -> bool:
        """Waits for the others' ids; False: there are none, as not all ranks have such a batch."""
        self._send_ids(batch)
        if batch.ids is None:
            return False
        if batch.demand is None:
            batch.demand = self._exchange.demand(batch.header.wait(), batch.ids.wait())
        return True

    # --- Vectors ---------------------------------------------------------------------------------

    def _fetch(self, batch: _Batch) -> Incoming:
        assert batch.request is not None and batch.demand is not None
        which = (None, None) if batch.fresh is None else batch.fresh
        return self._exchange.answer(batch.request, batch.demand, which, Priority.URGENT)

    def _store(self, batch: _Batch, urgent: Incoming) -> None:
        """Puts vectors where look-ups find them, as leaves whose gradients end() sends."""
        assert batch.request is not None
        vectors = batch.request.empty_vectors(urgent.tensor.dtype)
        if batch.early is not None:
            assert batch.settled is not None
            batch.request.store(batch.early.wait(), batch.settled[0], vectors)
        which = None if batch.fresh is None else batch.fresh[0]
        batch.request.store(urgent.wait(), which, vectors)
        batch.vectors = [each.requires_grad_() for each in vectors]

    def _fetch_next(self) -> None:
        """What goes on while the model computes: rows of the next batch are fetched.

        Those that this batch does not need may still lack gradients of the one before.
        """
        self._apply(self._take_late())
        if self._boundary is not None:
            self._send_early(self._queue[0], self._boundary)

    def _join(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile.join()

    def _send_early(self, batch: _Batch, boundary: _Boundary) -> None:
        assert batch.request is not None and batch.demand is not None
        batch.fresh, batch.settled = _divided(batch, boundary.fresh_told, boundary.fresh_rows)
        batch.early = self._exchange.answer(
            batch.request, batch.demand, batch.settled, Priority.LOW
        )

    def _compare(self, batch: _Batch) -> _Boundary | None:
        """Finds what the next batch shares with this one; None: there is none, as yet."""
        if not self._queue or not self._knows_demand(self._queue[0]):
            return None
        following = self._queue[0]
        assert batch.demand is not None and following.demand is not None
        assert batch.request is not None and following.request is not None
        awaited = batch.demand.shared_with(following.demand)
        fresh = following.demand.shared_with(batch.demand)
        tell = self._exchange.tell
        return _Boundary(
            awaited,
            fresh,
            tell(batch.request, batch.demand, awaited, Priority.HIGH),
            tell(following.request, following.demand, fresh, Priority.HIGH),
        )

    # --- Gradients -------------------------------------------------------------------------------

    def _awaited(self, batch: _Batch) -> tuple[_Both, _Both | None, list[Tensor] | None]:
        """Returns the entries whose gradients the next batch waits for, the others, and rows."""
        if self._boundary is None:
            return (None, None), None, None
        rows = self._boundary.awaited_rows
        awaited, others = _divided(batch, self._boundary.awaited_told, rows)
        return awaited, others, rows

    def _give_back(
        self,
        batch: _Batch,
        gradients: list[Tensor],
        which: _Both,
        of_rows: list[Tensor] | None,
        steps: list[int],
        priority: Priority = Priority.HIGH,
    ) -> _Gradients:
        assert batch.request is not None and batch.demand is not None
        assert self._embedding.optimizer is not None
        coming = self._exchange.give_back(batch.request, batch.demand, gradients, which, priority)
        lr = self._embedding.optimizer.lr
        return _Gradients(coming, batch.demand, which[1], of_rows, lr, steps)

    def _take_urgent(self) -> _Gradients | None:
        taken, self._urgent_gradients = self._urgent_gradients, None
        return taken

    def _take_late(self) -> _Gradients | None:
        taken, self._late_gradients = self._late_gradients, None
        return taken

    def _apply(self, gradients: _Gradients | None) -> None:
        if gradients is not None:
            wire = gradients.coming.wait()
            sums = gradients.demand.add_up(wire, gradients.selection, gradients.of_rows)
            self._embedding.apply_gradients(sums, gradients.lr, gradients.steps)

    def _present(self, call: str) -> _Batch:
        if self._current is None:
            raise RuntimeError(f"{call}() without a begin()")
        return self._current


def _divided(batch: _Batch, told: Incoming, of_rows: list[Tensor]) -> tuple[_Both, _Both]:
    """Returns the entries of which something is so, and the others, as both ends know them.

    Args:
        batch: Whose entries.
        told: What the holders say of this rank's entries.
        of_rows: What this rank says of the rows that it holds; by table, bool.
    """
    assert batch.request is not None and batch.demand is not None
    asked = Selection.of(batch.request.pieces, batch.request.masks(told.wait()))
    demanded = Selection.of(batch.demand.pieces, batch.demand.masks(of_rows))
    return (asked[0], demanded[0]), (asked[1], demanded[1])
