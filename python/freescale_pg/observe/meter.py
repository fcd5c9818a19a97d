"""Measures where the time of training steps goes, while they run."""

import threading
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from freescale_pg._extension import _C
from freescale_pg._group import member_group
from freescale_pg._priority import Priority
from freescale_pg.observe.report import Blocked, BubbleReport, RankTimes, StepTime

T = TypeVar("T")

# Loads between two steps; more are those of a loop that takes no steps.
_MOST_LOADS = 1000


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A stretch of one thread's time; ns of the monotonic clock."""

    thread: int
    begin: int
    end: int


class BubbleMeter:
    """Tells for each step and rank: computing, blocked by whom and what, waiting for the loader.

    Of the thread that takes the steps: it is blocked while it is inside ``wait()`` of a call of
    this backend, a blocking call included. Up to the moment when the last of the call's ranks has
    come that counts as waiting for stragglers, from then on as exposed communication. Time in
    ``next()`` of the loader is the loader's, but for what is blocked in it. All the rest counts as
    computing. ``docs/bubbles.md`` defines it exactly, and says what it costs.

    For CPU tensors. Of CUDA tensors streams wait, and not the host: take a trace there, see
    :func:`freescale_pg.observe.read_traces`.

    Args:
        group: Whose ranks :meth:`report` gathers; None: the default group.
        keep: How many steps are remembered, the last ones.

    Raises:
        ValueError: ``keep`` is not positive.

    Example:
        >>> meter = fs.BubbleMeter()
        >>> for batch in meter.loader(loader):
        ...     with meter.step():
        ...         train(batch)
        >>> print(meter.report())
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, keep: int = 10_000) -> None:
        if keep <= 0:
            raise ValueError(f"keep must be positive, got {keep}")
        self._group = group
        self._waits = _C.WaitLog()
        self._loads: deque[_Stretch] = deque(maxlen=_MOST_LOADS)
        self._steps: deque[StepTime] = deque(maxlen=keep)
        self._number = 0
        self._open = False

    def loader(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches. What getting them takes belongs to the step that is open or next."""
        begin = time.monotonic_ns()
        iterator = iter(batches)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._loads.append(_Stretch(threading.get_native_id(), begin, time.monotonic_ns()))
            yield batch
            begin = time.monotonic_ns()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measures the block as a step; one that raises does not count.

        Raises:
            RuntimeError: A step of this meter is open already.
        """
        if self._open:
            raise RuntimeError(f"step {self._number} of this BubbleMeter has not ended yet")
        self._open = True
        begin = time.monotonic_ns()
        try:
            yield
            self._end_step(_Stretch(threading.get_native_id(), begin, time.monotonic_ns()))
        finally:
            self._open = False
            self._loads.clear()
            self._waits.clear()

    def report(self) -> BubbleReport:
        """Gathers the steps of all ranks; collective.

        Returns:
            The same on every rank.

        Raises:
            ValueError: There is no process group, or this rank is not in it.
            RuntimeError: A rank is lost.
        """
        if torch.cuda.is_initialized():
            warnings.warn(
                "BubbleMeter measures the host: what streams wait for counts as computing. Use"
                " `freescale bubbles` on traces of torch.profiler",
                stacklevel=2,
            )
        if self._waits.dropped:
            warnings.warn(
                f"{self._waits.dropped} waits were too many to be counted; their time counts as"
                " computing",
                stacklevel=2,
            )
        group = member_group(self._group)
        own = RankTimes(dist.get_rank(), tuple(self._steps))
        gathered: list[RankTimes | None] = [None] * group.size()
        dist.all_gather_object(gathered, own, group=group)
        return BubbleReport(tuple(each for each in gathered if each is not None))

    def _end_step(self, step: _Stretch) -> None:
        loads = [load for load in self._loads if load.thread == step.thread]
        before = [load for load in loads if load.end <= step.begin]
        sums: dict[tuple[str, int], list[int]] = {}
        for stretch in (step, *before):
            for one in self._blocked(stretch):
                times = sums.setdefault((one.op, one.priority), [0, 0])
                times[0] += one.stragglers
                times[1] += one.communication
        blocked = tuple(
            Blocked(op, Priority(priority).name, *times) for (op, priority), times in sums.items()
        )
        total = sum(stretch.end - stretch.begin for stretch in (step, *before))
        loader = sum(
            load.end
            - load.begin
            - sum(one.stragglers + one.communication for one in self._blocked(load))
            for load in loads
        )
        compute = total - loader - sum(map(sum, sums.values()))
        self._steps.append(StepTime(self._number, total, compute, loader, 0, blocked))
        self._number += 1

    def _blocked(self, stretch: _Stretch) -> list[_C.BlockedTime]:
        return self._waits.blocked_time(stretch.thread, stretch.begin, stretch.end)
