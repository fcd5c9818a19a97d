"""An all-to-all with buffers and a group of its own, to be waited for or left in flight.

One of CUDA tensors has a stream of its own, too, and is timed by the events of that: the host would
know of its end only later.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.distributed as dist

from freescale_pg.bench.cells import ELEMENT_BYTES
from freescale_pg.bench.clocks import seconds_between
from freescale_pg.bench.devices import CPU
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CANDIDATE


def group_of_priority(backend: str, priority: str) -> dist.ProcessGroup:
    """Makes a group of all ranks, of a priority where the backend has them. A collective call."""
    options = None
    if backend == CANDIDATE:
        # Only here: other backends are measured without the module.
        from freescale_pg._priority import Priority
        from freescale_pg.options import Options

        options = Options(priority=Priority[priority])
    group: dist.ProcessGroup = dist.new_group(backend=backend, pg_options=options)
    return group


class Exchange:
    """An equal all_to_all_single of float32."""

    def __init__(
        self, size: int, ranks: Ranks, group: dist.ProcessGroup, device: torch.device = CPU
    ) -> None:
        """Fills the buffers.

        Args:
            size: bytes of a rank's input, rounded up to equal parts of one element or more.
            ranks: the run.
            group: a group of all its ranks.
            device: of the tensors.
        """
        count = -(-size // (ELEMENT_BYTES * ranks.world_size)) * ranks.world_size
        # Made on the CPU, so that no kernel of the device runs.
        self._input = torch.full((count,), float(ranks.rank)).to(device)
        self._output = torch.full((count,), float("nan")).to(device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._group = group
        self._world_size = ranks.world_size

    def run(self) -> tuple[float, float]:
        """Exchanges and waits.

        Returns:
            When it began and ended: seconds of the clock that all processes of a host share. Of
            CUDA tensors: 0, and how long it took on their stream, as devices share no clock.
        """
        if self._stream is not None:
            return 0.0, self.start().wait()
        begin = time.perf_counter()
        dist.all_to_all_single(self._output, self._input, group=self._group)
        return begin, time.perf_counter()

    def is_correct(self) -> bool:
        """Whether the output holds what the ranks have sent."""
        shares = self._output.cpu().view(self._world_size, -1)
        return bool(shares.eq(torch.arange(self._world_size).view(-1, 1)).all())

    @property
    def bytes_to_others(self) -> int:
        """What this rank sends to the other ones."""
        return self._input.nbytes * (self._world_size - 1) // self._world_size

    def start(self) -> InFlight:
        """Exchanges without waiting."""
        if self._stream is None:
            return OfHost(self._issue())
        return OfStream(self._issue, self._stream)

    def _issue(self) -> dist.Work:
        tensors = (self._output, self._input)
        work: dist.Work = dist.all_to_all_single(*tensors, group=self._group, async_op=True)
        return work


class InFlight(ABC):
    """An exchange that was started, and when it ended."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the exchange has ended on this rank."""

    @abstractmethod
    def wait(self) -> float:
        """Waits for the end; returns the seconds from the start to the end."""


class OfStream(InFlight):
    """One of CUDA tensors, from when its stream gets to it until that goes on.

    Args:
        issue: Starts it.
        stream: Where; no other stream waits for it.
    """

    def __init__(self, issue: Callable[[], dist.Work], stream: torch.cuda.Stream) -> None:
        # Blocking: a host that waits leaves its cores to the backend's own threads.
        self._begin, self._end = (
            torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2)
        )
        with torch.cuda.stream(stream):
            self._begin.record()
            self._work = issue()
            self._work.wait()
            self._end.record()

    @property
    def is_over(self) -> bool:
        """Whether the stream is past the exchange."""
        return bool(self._end.query())

    def wait(self) -> float:
        """Has the host wait."""
        self._end.synchronize()
        # Raises what failed after the wait of the stream had begun.
        self._work.wait()
        return seconds_between(self._begin, self._end)


class OfHost(InFlight):
    """One of CPU tensors.

    The work's future tells of the end, not the return of ``wait()``: between the two the caller
    may have been busy with something else.
    """

    def __init__(self, work: dist.Work) -> None:
        """Takes over a work that was issued just now."""
        self._work = work
        self._start = time.perf_counter()
        self._seconds = 0.0
        self._ended = threading.Event()
        self._future = work.get_future()
        self._future.add_done_callback(self._note_end)

    def _note_end(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        del future
        self._seconds = time.perf_counter() - self._start
        self._ended.set()

    @property
    def is_over(self) -> bool:
        """Whether the exchange has ended on this rank."""
        return self._ended.is_set()

    def wait(self) -> float:
        """Waits for the end; returns the seconds from the start to the end."""
        self._work.wait()
        # The future's callback may still be on its way.
        self._ended.wait()
        return self._seconds
