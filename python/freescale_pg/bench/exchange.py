"""An all-to-all with buffers and a group of its own, to be waited for or left in flight."""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed as dist

from freescale_pg.bench.cells import ELEMENT_BYTES
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

    def __init__(self, size: int, ranks: Ranks, group: dist.ProcessGroup) -> None:
        """Fills the buffers.

        Args:
            size: bytes of a rank's input, rounded up to equal parts of one element or more.
            ranks: the run.
            group: a group of all its ranks.
        """
        count = -(-size // (ELEMENT_BYTES * ranks.world_size)) * ranks.world_size
        self._input = torch.full((count,), float(ranks.rank))
        self._output = torch.full((count,), float("nan"))
        self._group = group
        self._world_size = ranks.world_size

    def run(self) -> None:
        """Exchanges and waits."""
        dist.all_to_all_single(self._output, self._input, group=self._group)

    def is_correct(self) -> bool:
        """Whether the output holds what the ranks have sent."""
        shares = self._output.view(self._world_size, -1)
        return bool(shares.eq(torch.arange(self._world_size).view(-1, 1)).all())

    def start(self) -> InFlight:
        """Exchanges without waiting."""
        return InFlight(
            dist.all_to_all_single(self._output, self._input, group=self._group, async_op=True)
        )


class InFlight:
    """An exchange that was started, and when it ended.

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
