"""Measures where the time of training steps goes, while they run."""

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias, TypeVar

import torch
import torch.distributed as dist

from freescale_pg._extension import _C
from freescale_pg._group import member_group
from freescale_pg._priority import Priority
from freescale_pg.observe.report import Blocked, BubbleReport, RankTimes, StepTime

T = TypeVar("T")

_Steps: TypeAlias = _C.StepMeter | _C.DeviceStepMeter


class BubbleMeter:
    """Tells for each step and rank: computing, blocked by whom and what, waiting for the loader.

    Of the thread that takes the steps: it is blocked while it is inside ``wait()`` of a call of
    this backend, a blocking call included. Up to the moment when the last of the call's ranks has
    come that counts as waiting for stragglers, from then on as exposed communication. Time in
    ``next()`` of the loader is the loader's, but for what is blocked in it. All the rest counts as
    computing. ``docs/bubbles.md`` defines it exactly, and says what it costs.

    On CUDA tensors streams wait, and not the host. There a step is measured on the stream that is
    current when it begins, by CUDA events around the step, its loads, and what the stream waits
    for; the times are the device's. Events are read once the device has passed them, so a step does
    not wait for the device; :meth:`report` and :meth:`own_steps` do, for steps that have ended.

    Args:
        group: Whose ranks :meth:`report` gathers; None: the default group.
        device: What is measured: a CUDA device, or "cpu" for the host. None: this process's
            current CUDA device if CUDA is initialised when the first step or load begins, else the
            host.
        keep: How many steps are remembered, the last ones.

    Raises:
        ValueError: ``keep`` is not positive, or ``device`` is neither the CPU nor a CUDA device
            that this process has.

    Example:
        >>> meter = fs.BubbleMeter()
        >>> for batch in meter.loader(loader):
        ...     with meter.step():
        ...         train(batch)
        >>> print(meter.report())
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        device: torch.device | str | int | None = None,
        keep: int = 10_000,
    ) -> None:
        if keep <= 0:
            raise ValueError(f"keep must be positive, got {keep}")
        self._group = group
        self._keep = keep
        self._device = None if device is None else _checked(device)
        self._steps: _Steps | None = None

    def loader(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches. What getting them takes belongs to the step that is open or next."""
        iterator: Iterator[T] | None = None
        steps = self._begun()
        while True:
            begin, well = time.monotonic_ns(), False
            steps.begin_load()
            try:
                iterator = iterator or iter(batches)
                batch = next(iterator)
                well = True
            except StopIteration:
                return
            finally:
                steps.end_load(begin, well)
            yield batch

    def step(self) -> AbstractContextManager[None]:
        """Returns what measures the block of a ``with`` as a step; one that raises does not count.

        Raises:
            RuntimeError: When the block is entered: a step of this meter has not ended yet.
        """
        return self._begun()

    def own_steps(self) -> tuple[StepTime, ...]:
        """Returns the steps of this rank so far, oldest first; not collective."""
        return () if self._steps is None else tuple(map(_step_time, self._steps.times()))

    def report(self) -> BubbleReport:
        """Gathers the steps of all ranks; collective.

        Returns:
            The same on every rank.

        Raises:
            ValueError: There is no process group, or this rank is not in it.
            RuntimeError: A rank is lost.
        """
        if self._device is None and isinstance(self._steps, _C.StepMeter):
            self._warn_of_late_cuda()
        if self._steps is not None and self._steps.dropped:
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

    def _begun(self) -> _Steps:
        if self._steps is None:
            self._steps = _meter_of(self._device or _present_device(), self._keep)
        return self._steps

    @staticmethod
    def _warn_of_late_cuda() -> None:
        if torch.cuda.is_initialized():
            warnings.warn(
                "CUDA was not initialised when the first step began, so this BubbleMeter measures"
                " the host: what streams wait for counts as computing. Give it device=",
                stacklevel=3,
            )


def _checked(device: torch.device | str | int) -> torch.device:
    chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if chosen.type == "cpu":
        return chosen
    count = torch.cuda.device_count()
    if chosen.type != "cuda" or (chosen.index or 0) >= count:
        raise ValueError(f"device must be the CPU or one of {count} CUDA devices, got {chosen}")
    return chosen


def _present_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_initialized() else "cpu")


def _meter_of(device: torch.device, keep: int) -> _Steps:
    if device.type == "cpu":
        return _C.StepMeter(keep)
    torch.cuda.init()
    index = torch.cuda.current_device() if device.index is None else device.index
    return _C.DeviceStepMeter(keep, index)


def _step_time(measured: _C.StepTime) -> StepTime:
    """Computing is what is left."""
    blocked = tuple(
        Blocked(each.op, Priority(each.priority).name, each.stragglers, each.communication)
        for each in measured.blocked
    )
    waited = sum(each.stragglers_ns + each.communication_ns for each in blocked)
    compute = measured.total - measured.loader - waited
    return StepTime(measured.number, measured.total, compute, measured.loader, 0, blocked)
