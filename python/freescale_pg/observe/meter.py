"""Measures where the time of training steps goes, while they run."""

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
import torch.distributed as dist

from freescale_pg._extension import _C
from freescale_pg._group import member_group
from freescale_pg._priority import Priority
from freescale_pg.observe.report import Blocked, BubbleReport, RankTimes, StepTime

T = TypeVar("T")


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
        self._steps = _C.StepMeter(keep)

    def loader(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches. What getting them takes belongs to the step that is open or next."""
        iterator: Iterator[T] | None = None
        while True:
            begin, well = time.monotonic_ns(), False
            self._steps.begin_load()
            try:
                iterator = iterator or iter(batches)
                batch = next(iterator)
                well = True
            except StopIteration:
                return
            finally:
                self._steps.end_load(begin, well)
            yield batch

    def step(self) -> AbstractContextManager[None]:
        """Returns what measures the block of a ``with`` as a step; one that raises does not count.

        Raises:
            RuntimeError: When the block is entered: a step of this meter has not ended yet.
        """
        return self._steps

    def own_steps(self) -> tuple[StepTime, ...]:
        """Returns the steps of this rank so far, oldest first; not collective."""
        return tuple(map(_step_time, self._steps.times()))

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
        if self._steps.dropped:
            warnings.warn(
                f"{self._steps.dropped} waits were too many to be counted; their time counts as"
                " computing",
                stacklevel=2,
            )
        group = member_group(self._group)
        own = RankTimes(dist.get_rank(), self.own_steps())
        gathered: list[RankTimes | None] = [None] * group.size()
        dist.all_gather_object(gathered, own, group=group)
        return BubbleReport(tuple(each for each in gathered if each is not None))


def _step_time(measured: _C.StepTime) -> StepTime:
    """Computing is what is left."""
    blocked = tuple(
        Blocked(each.op, Priority(each.priority).name, each.stragglers, each.communication)
        for each in measured.blocked
    )
    waited = sum(each.stragglers_ns + each.communication_ns for each in blocked)
    compute = measured.total - measured.loader - waited
    return StepTime(measured.number, measured.total, compute, measured.loader, 0, blocked)
