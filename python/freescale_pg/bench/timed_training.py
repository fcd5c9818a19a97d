"""A training whose computation takes time and no CPU, so that its exchanges stand out.

On a device its computing keeps the stream busy, and all times are those of the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from freescale_pg._priority import Priority
from freescale_pg.bench.clocks import Clock, make_clock
from freescale_pg.bench.devices import CPU
from freescale_pg.bench.noted_exchanges import ExchangeNotes, NotedWork
from freescale_pg.embedding import SGD, OverlapPipeline, ShardedEmbedding
from freescale_pg.operators import all_to_all_single

# How a step's computation is divided where nothing else is said: a backward takes twice a forward,
# and the optimizer of the dense part little.
FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.6, 0.1
# Rows of a rank, as a multiple of the ids of a batch: fresh ones must not come back at once.
_POOL = 8
# How soon a slowed computation sees that an exchange is over; seconds.
_SLICE = 0.005


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
class Computing:
    """What a rank computes in a step, at full speed; seconds."""

    forward: float
    backward: float
    optimizer: float

    @classmethod
    def divided(cls, seconds: float) -> Computing:
        """Divides the seconds of a step as usual."""
        return cls(FORWARD * seconds, BACKWARD * seconds, OPTIMIZER * seconds)

    @property
    def total(self) -> float:
        """All of it."""
        return self.forward + self.backward + self.optimizer


@dataclass(frozen=True)
class TimedBatch:
    """What one rank does in one step.

    Attributes:
        ids: Looked up, all different; no two ranks share any.
        computing: How long it computes.
    """

    ids: Tensor
    computing: Computing


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
    """The stand-in for a model: lets the time of computing pass, and keeps the times.

    Args:
        clock: By which it passes.
        buckets: Dense gradients, which are reduced while the backward goes on.
        group: Over which ranks.
        notes: Of the rank's exchanges.
        slowdown: By what part computing takes longer while an exchange of the rank is under way,
            from its request to its end, as the host knows them; 0.19 is 19 %.

    Attributes:
        present: What the present step computes.
        slowed: Seconds that computing took longer because of the slowdown, of all steps.
        intervals: When something was computed.
    """

    def __init__(
        self,
        clock: Clock,
        buckets: Sequence[Tensor],
        group: dist.ProcessGroup,
        notes: ExchangeNotes,
        slowdown: float = 0.0,
    ) -> None:
        self.present = Computing(0.0, 0.0, 0.0)
        self.slowed = 0.0
        self.intervals: list[Interval] = []
        self._clock = clock
        self._buckets = buckets
        self._group = group
        self._notes = notes
        self._slowdown = slowdown
        self._reducing: list[NotedWork] = []

    def forward(self, vectors: Tensor) -> Tensor:
        """Returns a loss of the vectors, after the time that a forward takes."""
        loss: Tensor = _Slow.apply(vectors, self)  # type: ignore[no-untyped-call]
        return loss

    def backward(self) -> None:
        """Takes the time of a backward, and reduces the dense gradients.

        As DDP does it, the end of the whole backward pass waits for them.
        """
        if not self._buckets:
            self.sleep("backward", self.present.backward)
            return
        for bucket in self._buckets:
            self.sleep("backward", self.present.backward / len(self._buckets))
            self._reducing.append(self._notes.begin(self._group, self._reduction_of(bucket)))
        torch.autograd.Variable._execution_engine.queue_callback(self._finish_reducing)

    def step(self) -> None:
        """Takes the time of the dense optimizer."""
        self.sleep("optimizer", self.present.optimizer)

    def sleep(self, name: str, seconds: float) -> None:
        """Takes so much time, and more where exchanges slow it down."""
        with self._clock.timing(lambda *span: self.intervals.append(Interval(name, *span))):
            if self._slowdown:
                self.slowed += take(seconds, self._slowdown, self._notes)
            else:
                self._clock.pass_time(seconds)

    def _reduction_of(self, bucket: Tensor) -> Callable[[], dist.Work | None]:
        return lambda: dist.all_reduce(bucket, group=self._group, async_op=True)

    def _finish_reducing(self) -> None:
        for work in self._reducing:
            work.wait()
        self._reducing.clear()


class _Optimizer(torch.optim.Optimizer):
    """What a pipeline steps in place of the dense optimizer."""

    def __init__(self, compute: Compute) -> None:
        super().__init__([torch.zeros(0, requires_grad=True)], {})
        self._compute = compute

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        self._compute.step()


def take(seconds: float, slowdown: float, notes: ExchangeNotes) -> float:
    """Sleeps so long as a computation takes that exchanges slow down.

    Args:
        seconds: At full speed.
        slowdown: By what part it takes longer while an exchange is under way.
        notes: Of the exchanges.

    Returns:
        By how much it took longer for that; what the system woke up late is not in it.
    """
    slowed = 0.0
    left = seconds
    while left > 0:
        notes.came.clear()
        begin = time.monotonic()
        if notes.any_under_way():
            time.sleep(min(_SLICE, left * (1 + slowdown)))
            # Late by itself, a sleep can't do more than was left.
            done = min((time.monotonic() - begin) / (1 + slowdown), left)
            slowed += done * slowdown
        else:
            notes.came.wait(left)
            done = time.monotonic() - begin
        left -= done
    return slowed


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, compute: Compute) -> Tensor:
        ctx.compute, ctx.like = compute, vectors
        compute.sleep("forward", compute.present.forward)
        return vectors[:1].sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.compute.backward()
        return torch.ones_like(ctx.like) * gradients[0], None


def equal_work(shape: Shape, group: dist.ProcessGroup, device: torch.device = CPU) -> Work:
    """Returns the same work for every rank and step, with ids on a device."""
    counts = repeat((shape.ids, round(shape.shared * shape.ids)))
    pool = _POOL * shape.ids
    ids = changing_ids(counts, pool, group.rank())
    computing = Computing.divided(shape.compute_seconds)
    batches = (TimedBatch(each.to(device), computing) for each in ids)
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
        called: The same by the host's clock, which on a device is when it was enqueued.
        taken: How many steps were taken, measured or not.
        notes: Of its exchanges.
        compute: Its computation.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        group: dist.ProcessGroup,
        *,
        overlap: bool,
        slowdown: float = 0.0,
        device: torch.device = CPU,
    ) -> None:
        self.name = name
        self.steps: list[Interval] = []
        self.called: list[Interval] = []
        self.taken = 0
        self._clock = make_clock(device)
        self.notes = ExchangeNotes(self._clock)
        buckets = [torch.zeros(elements).to(device) for elements in work.buckets]
        self.compute = Compute(self._clock, buckets, group, self.notes, slowdown)
        self._table = ShardedEmbedding(
            work.rows, work.dim, group=group, optimizer=SGD(1e-3), device=device
        )
        self._batches = work.batches
        self._pipeline: OverlapPipeline | None = None
        if overlap:
            self._pipeline = OverlapPipeline(
                self._loss,
                _Optimizer(self.compute),
                work.batches,
                embedding=self._table,
                ids_of=lambda batch: batch.ids,
            )

    def run(
        self,
        warm_up: int,
        measured: int,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Takes steps; collective.

        Args:
            warm_up: Steps that are not measured.
            measured: Steps after them.
            around: Returns what each measured step is taken in.
        """
        self._clock.settle()  # times are told from here on
        with self.notes.of_embeddings(self._all_to_all):
            for _ in range(warm_up):
                self._step()
            for _ in range(measured):
                with around():
                    self._measured_step()
        self._clock.settle()

    def close(self) -> None:
        """Ends what is under way; collective."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _measured_step(self) -> None:
        begin = time.monotonic()
        with self._clock.timing(lambda *span: self.steps.append(Interval(self.name, *span))):
            self._step()
        self.called.append(Interval(self.name, begin, time.monotonic()))

    def _step(self) -> None:
        self.taken += 1
        if self._pipeline is not None:
            self._pipeline.step()
            return
        self._loss(next(self._batches)).backward()
        self.compute.step()

    def _loss(self, batch: TimedBatch) -> Tensor:
        self.compute.present = batch.computing
        return self.compute.forward(self._table(batch.ids))

    def _all_to_all(self, *arguments: Any, **named: Any) -> dist.Work | None:
        """What the embedding's exchanges call."""
        return all_to_all_single(*arguments, **named)


class FirstInFirstOut(Training):
    """The overlapped schedule with one priority for all of its messages."""

    def _all_to_all(self, *arguments: Any, **named: Any) -> dist.Work | None:
        return super()._all_to_all(*arguments, **{**named, "priority": Priority.NORMAL})
