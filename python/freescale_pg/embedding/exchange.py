"""The messages of sharded embeddings: what travels, on which group, how urgently."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor

from freescale_pg._agreement import RanksDisagreeError, raise_disagreement
from freescale_pg._priority import Priority
from freescale_pg.embedding.pieces import Pieces
from freescale_pg.embedding.placement import Placement
from freescale_pg.embedding.request import Demand, Request, Selection
from freescale_pg.embedding.shard import TableShard
from freescale_pg.operators import all_to_all_single


class State(IntEnum):
    """What a rank says of its next batch."""

    BATCH = 0
    OVER = 1
    PROBLEM = 2


@dataclass(frozen=True)
class Incoming:
    """A tensor on its way."""

    tensor: Tensor
    work: dist.Work

    def wait(self) -> Tensor:
        """Returns the tensor once it is there."""
        self.work.wait()
        return self.tensor


class EmbeddingExchange:
    """Moves ids, vectors and gradients between the ranks that share tables.

    On groups of its own: what is fetched ahead is issued when a rank gets to it, so its order among
    the other messages may differ from rank to rank. All methods are collective, and return before
    anything has moved.

    Attributes:
        placements: Of the tables.
        shards: This rank's, by table.
        group: The ranks that share the tables.
    """

    def __init__(
        self,
        placements: Sequence[Placement],
        shards: Sequence[TableShard],
        group: dist.ProcessGroup,
    ) -> None:
        self.placements = placements
        self.shards = shards
        self.group = group
        self._on_path = _like(group)
        self._ids_ahead = _like(group)
        self._vectors_ahead = _like(group)
        self._size = group.size()
        rows = max(len(shard.rows) for placement in placements for shard in placement.shards)
        self._row_dtype = torch.int32 if rows < 2**31 else torch.int64

    def announce(self, request: Request | None, state: State, priority: Priority) -> Incoming:
        """Tells every rank how many rows of each table will be asked of it.

        Args:
            request: None: nothing.
            state: OVER or PROBLEM go without a request.
            priority: URGENT: of the present batch; otherwise of a later one.
        """
        header = torch.zeros((self._size, 1 + len(self.placements)), dtype=torch.int64)
        header[:, 0] = int(state)
        if request is not None:
            header[:, 1:] = request.pieces.counts
        header = header.to(self.shards[0].weight.device)
        return self._send(self._for_ids(priority), header, len(header), None, None, priority)

    def ask(self, request: Request, header: Tensor, priority: Priority) -> Incoming:
        """Sends the ids, once it is known what comes."""
        theirs, ours = header[:, 1:].sum(1).tolist(), request.pieces.of_peers()
        rows = request.wire_rows(self._row_dtype)
        return self._send(self._for_ids(priority), rows, sum(theirs), theirs, ours, priority)

    def demand(self, header: Tensor, rows: Tensor) -> Demand:
        """Makes of the others' ids what they ask of this rank."""
        return Demand(self.shards, Pieces(header[:, 1:].cpu()), rows)

    def answer(
        self,
        request: Request,
        demand: Demand,
        selections: tuple[Selection | None, Selection | None],
        priority: Priority,
    ) -> Incoming:
        """Sends vectors that the others asked for.

        Args:
            request: This rank's.
            demand: The others'.
            selections: Which entries of the request, and of the demand.
            priority: URGENT: of the present batch; otherwise of a later one.
        """
        wire = demand.look_up(selections[1])
        theirs, ours = request.sizes(selections[0]), demand.sizes(selections[1])
        group = self._on_path if priority == Priority.URGENT else self._vectors_ahead
        return self._send(group, wire, sum(theirs), theirs, ours, priority)

    def give_back(
        self,
        request: Request,
        demand: Demand,
        gradients: Sequence[Tensor],
        selections: tuple[Selection | None, Selection | None],
        priority: Priority,
    ) -> Incoming:
        """Sends the gradients of vectors to the holders of the rows."""
        wire = request.gather(gradients, selections[0])
        theirs, ours = demand.sizes(selections[1]), request.sizes(selections[0])
        return self._send(self._on_path, wire, sum(theirs), theirs, ours, priority)

    def tell(
        self, request: Request, demand: Demand, of_rows: Sequence[Tensor], priority: Priority
    ) -> Incoming:
        """Says something of each row to all that ask for it, in one byte for each entry.

        Args:
            request: This rank's, of the same batch.
            demand: The others'.
            of_rows: What to say; by table, bool, shape ``[rows]``.
            priority: Of the message.
        """
        wire = demand.wire_masks(of_rows)
        theirs, ours = request.pieces.of_peers(), demand.pieces.of_peers()
        return self._send(self._on_path, wire, sum(theirs), theirs, ours, priority)

    def all_have_batches(self, header: Tensor) -> bool:
        """Returns whether all ranks announced a BATCH."""
        return not bool((header[:, 0] != State.BATCH).any())

    def is_over(self, header: Tensor) -> bool:
        """Returns whether any rank announced that it is OVER."""
        return bool((header[:, 0] == State.OVER).any())

    def check(self, header: Tensor, problem: Exception | None) -> bool:
        """Returns whether there is a batch; False: it was the last one on all ranks.

        Args:
            header: What :meth:`announce` brought.
            problem: Why this rank announced a PROBLEM.

        Raises:
            RanksDisagreeError: On all ranks, if one had a problem, or if some have no more batches
                and others do.
        """
        states = header[:, 0].tolist()
        if State.PROBLEM in states:
            raise_disagreement("the ranks' look-ups", None, problem, self.group)
        over = [rank for rank, state in enumerate(states) if state == State.OVER]
        if over and len(over) < self._size:
            going_on = [rank for rank in range(self._size) if rank not in over]
            raise RanksDisagreeError(
                f"the batches of ranks {over} are over, and ranks {going_on} have another one:"
                " give all ranks the same number"
            )
        return not over

    def _for_ids(self, priority: Priority) -> dist.ProcessGroup:
        return self._on_path if priority == Priority.URGENT else self._ids_ahead

    def _send(
        self,
        group: dist.ProcessGroup,
        wire: Tensor,
        coming: int,
        theirs: list[int] | None,
        ours: list[int] | None,
        priority: Priority,
    ) -> Incoming:
        room = wire.new_empty((coming, *wire.shape[1:]))
        work = all_to_all_single(
            room, wire, theirs, ours, group=group, priority=priority, async_op=True
        )
        assert work is not None
        return Incoming(room, work)


def _like(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Makes another group of the same ranks; collective."""
    ranks = dist.get_process_group_ranks(group)
    made = dist.new_group(
        ranks,
        timeout=_timeout_of(group),
        backend=dist.get_backend(group),
        use_local_synchronization=group is not dist.group.WORLD,
    )
    assert isinstance(made, dist.ProcessGroup)
    return made


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """Returns a group's timeout; None: its backend does not say, and has its default one."""
    backend = group._get_backend(group._device_types[0])
    timeout = getattr(getattr(backend, "options", None), "_timeout", None)
    return timeout if isinstance(timeout, timedelta) else None
