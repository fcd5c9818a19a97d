"""What the parts of a program are timed by: the host's clock, or a stream of a device.

A host runs ahead of a device, so what it does there takes the time that a stream needs from one
event to another one, which is known afterwards.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

# Takes a begin and an end; seconds of the host's monotonic clock.
Keep = Callable[[float, float], None]
# A millisecond or so of a device: long beside the launch of a kernel.
_TRIAL_CYCLES = 2_000_000


class Clock(ABC):
    """Times blocks of a program."""

    @abstractmethod
    def timing(self, keep: Keep) -> AbstractContextManager[None]:
        """Times the block, if it holds up what this is the clock of.

        Args:
            keep: Called with its begin and end, by :meth:`settle` at the latest.
        """

    @abstractmethod
    def settle(self) -> None:
        """Waits for all that was timed, and has it kept."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Lets the time pass that computing would take, without any use of the CPU."""


class HostClock(Clock):
    """Of the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    @contextmanager
    def timing(self, keep: Keep) -> Iterator[None]:
        """As :class:`Clock` has it; what is timed is kept at once."""
        begin = time.monotonic()
        try:
            yield
        finally:
            if threading.get_ident() == self._thread:
                keep(begin, time.monotonic())

    def settle(self) -> None:
        """Does nothing."""

    def pass_time(self, seconds: float) -> None:
        """Sleeps."""
        time.sleep(seconds)


class StreamClock(Clock):
    """Of the stream that is current for a device when it is made, whoever enqueues there.

    Times are those of events, told as times of the host's clock since the last :meth:`settle`. The
    lengths do not depend on that.

    Args:
        device: A CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._pending: list[tuple[Keep, torch.cuda.Event, torch.cuda.Event]] = []
        self._cycles_of_second: float | None = None
        self._begin()

    @contextmanager
    def timing(self, keep: Keep) -> Iterator[None]:
        """As :class:`Clock` has it."""
        if torch.cuda.current_stream(self._stream.device) != self._stream:
            yield
            return
        begin = self._mark()
        try:
            yield
        finally:
            # From several threads: an append is whole.
            self._pending.append((keep, begin, self._mark()))

    def settle(self) -> None:
        """Waits for the stream."""
        self._stream.synchronize()
        pending, self._pending = self._pending, []
        for keep, begin, end in pending:
            first = self._origin + seconds_between(self._first, begin)
            keep(first, first + seconds_between(begin, end))
        self._begin()

    def pass_time(self, seconds: float) -> None:
        """Keeps the stream busy with a kernel of one thread."""
        if self._cycles_of_second is None:
            self._cycles_of_second = self._measure_cycles()
        torch.cuda._sleep(round(seconds * self._cycles_of_second))

    def _measure_cycles(self) -> float:
        """Returns how many cycles of the device's clock are a second, of the second of two tries.

        The first one loads the kernel.
        """
        torch.cuda._sleep(_TRIAL_CYCLES)
        begin = self._mark()
        torch.cuda._sleep(_TRIAL_CYCLES)
        end = self._mark()
        end.synchronize()
        return _TRIAL_CYCLES / seconds_between(begin, end)

    def _begin(self) -> None:
        self._first = self._mark()
        self._first.synchronize()
        self._origin = time.monotonic()

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event


def make_clock(device: torch.device) -> Clock:
    """Returns the clock of this thread, or of its current stream of a CUDA device."""
    return StreamClock(device) if device.type == "cuda" else HostClock()


def seconds_between(first: torch.cuda.Event, second: torch.cuda.Event) -> float:
    """Returns how long a device needs from one event to a later one; both have come."""
    milliseconds: float = first.elapsed_time(second)
    return 1e-3 * milliseconds
