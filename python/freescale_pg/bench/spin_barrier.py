"""A barrier in shared memory, cheap enough to start a microsecond measurement on all ranks."""

from __future__ import annotations

import mmap
import os
import time

from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.shared_mapping import shared_mapping

# One counter a cache line, so that a rank that arrives disturbs no other rank's counter.
_LINE_BYTES = 64
_COUNTER_BYTES = 8
_DEADLINE_SECONDS = 300.0


class SpinBarrier:
    """Each rank counts its arrivals; a rank goes on once all have arrived as often as itself.

    Ranks leave within one turn of a Python loop of each other (about 0.3 µs, or 1 µs when
    yielding) as long as each has a core.
    """

    def __init__(self, ranks: Ranks, yields: bool, mapping: mmap.mmap | None = None) -> None:
        """Maps the counters. A collective call.

        Args:
            ranks: the run.
            yields: give the core away at each turn. Needed when other threads must run for the
                peers to arrive; otherwise it only adds the scheduler's noise.
            mapping: a zeroed page that all ranks share; None: makes one.

        Raises:
            NotSharedError: it made none that all ranks can map; on every rank.
        """
        stride = _LINE_BYTES // _COUNTER_BYTES
        if mapping is None:
            mapping = shared_mapping(ranks, ranks.world_size * _LINE_BYTES)
        self._counters = memoryview(mapping).cast("q")
        self._mine = ranks.rank * stride
        self._others = [r * stride for r in range(ranks.world_size) if r != ranks.rank]
        self._yields = yields
        self._round = 0

    def wait(self) -> None:
        """Returns once every rank has called it as often as this one.

        Raises:
            TimeoutError: a rank did not come within five minutes.
        """
        self._round += 1
        self._counters[self._mine] = self._round
        deadline = time.perf_counter() + _DEADLINE_SECONDS
        for other in self._others:
            while self._counters[other] < self._round:
                if self._yields:
                    os.sched_yield()
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"a rank did not reach barrier {self._round}")
