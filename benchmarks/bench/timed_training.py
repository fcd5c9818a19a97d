"""A training whose computation takes time and no CPU, so that its exchanges stand out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

import freescale_pg as fs
from freescale_pg import Priority
from freescale_pg.embedding import SGD, EmbeddingOverlap, exchange
from freescale_pg.embedding.background import Background
from freescale_pg.embedding.exchange import Incoming

# How a step's computation is divided: a backward takes twice a forward, and the optimizer of the
# dense part little.
_FORWARD, _BACKWARD, _OPTIMIZER = 0.3, 0.6, 0.1
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


@dataclass
class Interval:
    """When something went on; seconds of the monotonic clock."""

    name: str
    begin: float
    end: float


class Compute:
    """The stand-in for a device that computes: sleeps, and keeps the times."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.intervals: list[Interval] = []

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns a loss of the vectors, after the time that a forward takes."""
        loss: Tensor = _Slow.apply(vectors, self)  # type: ignore[no-untyped-call]
        return loss

    def optimize(self) -> None:
        """Takes the time of the dense optimizer."""
        self.sleep("optimizer", _OPTIMIZER)

    def sleep(self, name: str, part: float) -> None:
        """Takes a part of the step's time."""
        begin = time.monotonic()
        time.sleep(part * self._seconds)
        self.intervals.append(Interval(name, begin, time.monotonic()))


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, compute: Compute) -> Tensor:
        ctx.compute, ctx.like = compute, vectors
        compute.sleep("forward", _FORWARD)
        return vectors[:1].sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.compute.sleep("backward", _BACKWARD)
        return torch.ones_like(ctx.like) * gradients[0], None


def batches(shape: Shape, rank: int) -> Iterator[Tensor]:
    """Yields a rank's ids without end; no two ranks share any."""
    pool = _POOL * shape.ids
    kept = round(shape.shared * shape.ids)
    # The oldest ids leave first, so none comes back before all others were used.
    present = torch.arange(shape.ids)
    following = shape.ids
    while True:
        yield rank * pool + present
        fresh = (following + torch.arange(shape.ids - kept)) % pool
        following += len(fresh)
        present = torch.cat([present[len(present) - kept :], fresh])


class Training:
    """One schedule.

    Attributes:
        name: Shown in the table.
        steps: Per measured step, when it ran.
        waits: When the training's own thread waited for a message, or for the thread beside it.
        compute: Its computation.
    """

    def __init__(self, name: str, shape: Shape, group: dist.ProcessGroup, *, overlap: bool) -> None:
        self.name = name
        self.steps: list[Interval] = []
        self.waits: list[Interval] = []
        self.compute = Compute(shape.compute_seconds)
        self._table = fs.ShardedEmbedding(
            group.size() * _POOL * shape.ids, shape.dim, group=group, optimizer=SGD(1e-3)
        )
        self._overlap = EmbeddingOverlap(self._table) if overlap else None
        self._ids = batches(shape, group.rank())
        self._ahead: list[Tensor] = []

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
            self.compute.forward(self._table(next(self._ids))).backward()
            self.compute.optimize()
            return
        while len(self._ahead) < 2:
            self._prefetch(self._overlap)
        self._overlap.begin()
        self._prefetch(self._overlap)
        loss = self.compute.forward(self._table(self._ahead.pop(0)))
        self._overlap.look_ahead()
        loss.backward()
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
        ids = next(self._ids)
        overlap.prefetch(ids)
        self._ahead.append(ids)


class FirstInFirstOut(Training):
    """The overlapped schedule with one priority for all of its messages."""

    def _step(self) -> None:
        def alike(*arguments: Any, **named: Any) -> Any:
            return fs.all_to_all_single(*arguments, **{**named, "priority": Priority.NORMAL})

        with patch.object(exchange, "all_to_all_single", alike):
            super()._step()
