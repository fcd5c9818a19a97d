"""A training whose computation takes time and no CPU, so that its exchanges stand out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from freescale_pg._priority import Priority
from freescale_pg.embedding import SGD, EmbeddingOverlap, ShardedEmbedding, exchange
from freescale_pg.embedding.background import Background
from freescale_pg.embedding.exchange import Incoming
from freescale_pg.operators import all_to_all_single

# How a step's computation is divided: a backward takes twice a forward, and the optimizer of the
# dense part little.
FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.6, 0.1
# Rows of a rank, as a multiple of the ids of a batch: fresh ones must not come back at once.
_POOL = 8


@dataclass(frozen=True)
class Shape:
    """What one step of every rank is.

    Attributes:
        ids: Looked up by each rank, all different.
        dim: Length of a row; float32.
        shared: Part of the ids that the batch before had as well.
        compute_seconds: Of forward, backward and optimizer together.
    """

    ids: int
    dim: int
    shared: float
    compute_seconds: float


@dataclass(frozen=True)
class TimedBatch:
    """What one rank does in one step.

    Attributes:
        ids: Looked up, all different; no two ranks share any.
        compute_seconds: Of forward, backward and optimizer together.
    """

    ids: Tensor
    compute_seconds: float


@dataclass(frozen=True)
class Work:
    """What one rank trains on.

    Attributes:
        rows: Of the table, of all ranks together.
        dim: Length of a row; float32.
        batches: As many as are asked for.
        buckets: Elements of each bucket of dense gradients, float32; a backward gets to each in
            equal times, as DDP's does.
    """

    rows: int
    dim: int
    batches: Iterator[TimedBatch]
    buckets: Sequence[int] = ()


@dataclass
class Interval:
    """When something went on; seconds of the monotonic clock."""

    name: str
    begin: float
    end: float


class Compute:
    """The stand-in for a device that computes: sleeps, and keeps the times.

    Args:
        buckets: Dense gradients, which are reduced while the backward goes on.
        group: Over which ranks.

    Attributes:
        seconds: Of the present step, all of it.
        intervals: When something was computed.
    """

    def __init__(self, buckets: Sequence[Tensor], group: dist.ProcessGroup) -> None:
        self.seconds = 0.0
        self.intervals: list[Interval] = []
        self._buckets = buckets
        self._group = group
        self._reducing: list[dist.Work] = []

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns a loss of the vectors, after the time that a forward takes."""
        loss: Tensor = _Slow.apply(vectors, self)  # type: ignore[no-untyped-call]
        return loss

    def backward(self) -> None:
        """Takes the time of a backward, and begins to reduce the dense gradients."""
        if not self._buckets:
            self.sleep("backward", BACKWARD)
        for bucket in self._buckets:
            self.sleep("backward", BACKWARD / len(self._buckets))
            work = dist.all_reduce(bucket, group=self._group, async_op=True)
            assert work is not None
            self._reducing.append(work)

    def finish_reducing(self) -> None:
        """Waits for the dense gradients."""
        for work in self._reducing:
            work.wait()
        self._reducing.clear()

    def optimize(self) -> None:
        """Takes the time of the dense optimizer."""
        self.sleep("optimizer", OPTIMIZER)

    def sleep(self, name: str, part: float) -> None:
        """Takes a part of the step's time."""
        begin = time.monotonic()
        time.sleep(part * self.seconds)
        self.intervals.append(Interval(name, begin, time.monotonic()))


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, compute: Compute) -> Tensor:
        ctx.compute, ctx.like = compute, vectors
        compute.sleep("forward", FORWARD)
        return vectors[:1].sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.compute.backward()
        return torch.ones_like(ctx.like) * gradients[0], None


def equal_work(shape: Shape, group: dist.ProcessGroup) -> Work:
    """Returns the same work for every rank and step."""
    counts = repeat((shape.ids, round(shape.shared * shape.ids)))
    pool = _POOL * shape.ids
    ids = changing_ids(counts, pool, group.rank())
    batches = (TimedBatch(each, shape.compute_seconds) for each in ids)
    return Work(group.size() * pool, shape.dim, batches)


def changing_ids(counts: Iterable[tuple[int, int]], pool: int, rank: int) -> Iterator[Tensor]:
    """Yields a rank's ids; no two ranks share any.

    Args:
        counts: Of each batch, how many ids it has, and how many of them the one before had too.
        pool: Ids of each rank.
        rank: This one.
    """
    present = torch.arange(0)
    following = 0
    for count, kept in counts:
        # The oldest ids leave first, so none comes back before all others were used.
        fresh = (following + torch.arange(count - min(kept, len(present)))) % pool
        following += len(fresh)
        present = torch.cat([present[len(present) - count + len(fresh) :], fresh])
        yield rank * pool + present


class Training:
    """One schedule.

    Attributes:
        name: Shown in the table.
        steps: Per measured step, when it ran.
        waits: When the training's own thread waited for a message, or for the thread beside it.
        compute: Its computation.
    """

    def __init__(self, name: str, work: Work, group: dist.ProcessGroup, *, overlap: bool) -> None:
        self.name = name
        self.steps: list[Interval] = []
        self.waits: list[Interval] = []
        self.compute = Compute([torch.zeros(elements) for elements in work.buckets], group)
        self._table = ShardedEmbedding(work.rows, work.dim, group=group, optimizer=SGD(1e-3))
        self._overlap = EmbeddingOverlap(self._table) if overlap else None
        self._batches = work.batches
        self._ahead: list[TimedBatch] = []

    def run(self, warm_up: int, measured: int) -> None:
        """Takes steps; collective."""
        with (
            patch.object(Incoming, "wait", self._noted(Incoming.wait)),
            patch.object(Background, "join", self._noted(Background.join)),
        ):
            for number in range(warm_up + measured):
                begin = time.monotonic()
                self._step()
                if number >= warm_up:
                    self.steps.append(Interval(self.name, begin, time.monotonic()))

    def close(self) -> None:
        """Ends what is under way; collective."""
        if self._overlap is not None:
            self._overlap.detach()

    def _step(self) -> None:
        if self._overlap is None:
            batch = next(self._batches)
            self.compute.seconds = batch.compute_seconds
            self.compute.forward(self._table(batch.ids)).backward()
            self.compute.finish_reducing()
            self.compute.optimize()
            return
        while len(self._ahead) < 2:
            self._prefetch(self._overlap)
        self._overlap.begin()
        self._prefetch(self._overlap)
        batch = self._ahead.pop(0)
        self.compute.seconds = batch.compute_seconds
        loss = self.compute.forward(self._table(batch.ids))
        self._overlap.look_ahead()
        loss.backward()
        self.compute.finish_reducing()
        self._overlap.end()
        self.compute.optimize()

    def _noted(self, wait: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a method that also notes when it ran, on this thread."""
        own = threading.get_ident()

        def noted(of: Any) -> Any:
            begin = time.monotonic()
            try:
                return wait(of)
            finally:
                # The backward of CPU tensors runs on the thread that calls it.
                if threading.get_ident() == own:
                    self.waits.append(Interval("waiting", begin, time.monotonic()))

        return noted

    def _prefetch(self, overlap: EmbeddingOverlap) -> None:
        batch = next(self._batches)
        overlap.prefetch(batch.ids)
        self._ahead.append(batch)


class FirstInFirstOut(Training):
    """The overlapped schedule with one priority for all of its messages."""

    def _step(self) -> None:
        def alike(*arguments: Any, **named: Any) -> Any:
            return all_to_all_single(*arguments, **{**named, "priority": Priority.NORMAL})

        with patch.object(exchange, "all_to_all_single", alike):
            super()._step()
