"""Records every message, call and wait for a while, and writes them as a trace of all ranks."""

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch.distributed as dist

from freescale_pg._extension import _C
from freescale_pg._group import member_group
from freescale_pg.observe.chrome import Slice, TraceEvent, slice_of, trace_events
from freescale_pg.observe.clocks import (
    ClockDrift,
    ClockOffset,
    measure_drifts,
    measure_offsets,
)

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Recording:
    """What one rank has seen.

    Attributes:
        rank: Of all ranks.
        host: Name of its host.
        process: Its number there.
        begin: Of the recording; ns of the rank's monotonic clock.
        dropped: Events that were too many to be kept, the oldest ones.
        slices: The others.
    """

    rank: int
    host: str
    process: int
    begin: int
    dropped: int
    slices: list[Slice]


@contextmanager
def trace(
    path: str | PathLike[str],
    *,
    group: dist.ProcessGroup | None = None,
    capacity: int = 200_000,
) -> Iterator[None]:
    """Writes what this backend does in the block, on all ranks, as one Chrome trace; collective.

    Perfetto (https://ui.perfetto.dev) and chrome://tracing open it. Each rank has lanes for its
    calls by operation, for its threads' waits, and for the messages to and from each other rank by
    priority. In calls and waits the time until the last rank had come is marked *stragglers*.
    Nothing is recorded, and nothing is paid for it, outside of such blocks.

    The ranks' clocks are compared at the begin and at the end, so that the times of ranks of other
    hosts are right in between, however fast their clocks drift. At the end all is sent to the
    group's first rank, which writes the file. If the block raises, other ranks may be elsewhere:
    then each that leaves it so writes what itself has seen, beside it: ``out.rank3.json`` for
    ``out.json``.

    Args:
        path: The file; the same on all ranks, or at least given.
        group: Whose ranks take part; None: the default group.
        capacity: How many events each rank keeps, the last ones; of 80 bytes. The file says
            how many were dropped.

    Raises:
        ValueError: There is no process group, this rank is not in it, or ``capacity`` is not
            positive.
        OSError: The file cannot be written.
        RuntimeError: A rank is lost.
    """
    if capacity <= 0:
        raise ValueError(f"capacity must be positive, got {capacity}")
    members = member_group(group)
    clocks = measure_offsets(members)
    begin = time.monotonic_ns()
    log = _C.TraceLog(capacity)
    try:
        yield
    except BaseException:
        own = finish(log, dist.get_rank(), begin)
        _write(_beside(Path(path), own.rank), [own], [ClockDrift(ClockOffset())])
        raise
    _gather(Path(path), finish(log, dist.get_rank(), begin), members, clocks)


def finish(log: _C.TraceLog, rank: int, begin: int) -> Recording:
    """Ends a recording of this process, and returns what it holds.

    Args:
        log: Of the recording.
        rank: This one.
        begin: When the recording began; ns of the monotonic clock.
    """
    log.close()
    return Recording(
        rank=rank,
        host=socket.gethostname(),
        process=os.getpid(),
        begin=begin,
        dropped=log.dropped,
        slices=[slice_of(event) for event in log.take()],
    )


def _gather(
    path: Path, own: Recording, group: dist.ProcessGroup, first: Sequence[ClockOffset]
) -> None:
    clocks = measure_drifts(group, first)
    if group.rank() != 0:
        dist.gather_object(own, None, group=group, group_dst=0)
        return
    recordings: list[Recording | None] = [None] * group.size()
    dist.gather_object(own, recordings, group=group, group_dst=0)
    _write(path, [each for each in recordings if each is not None], clocks)


def _write(path: Path, recordings: Sequence[Recording], clocks: Sequence[ClockDrift]) -> None:
    zero = min(
        clock.first_ranks_time(each.begin) for each, clock in zip(recordings, clocks, strict=True)
    )
    path.write_text(json.dumps(trace_document(recordings, clocks, zero)) + "\n")


def trace_document(
    recordings: Sequence[Recording], clocks: Sequence[ClockDrift], zero: int
) -> dict[str, Any]:
    """Returns a trace in Chrome's format.

    Args:
        recordings: Of the ranks.
        clocks: How the clock of each goes beside the first rank's.
        zero: What that one showed when the trace begins; ns.
    """
    events: list[TraceEvent] = []
    ranks = []
    for each, clock in zip(recordings, clocks, strict=True):
        title = f"rank {each.rank} ({each.host}, process {each.process})"
        since_zero = partial(_since_zero, clock, zero)
        events += trace_events(each.rank, title, each.slices, since_zero)
        ranks.append(
            {
                "rank": each.rank,
                "host": each.host,
                "pid": each.process,
                "dropped_events": each.dropped,
                "clock_offset_ns": clock.offset_at(each.begin),
                "clock_drift_ppm": 1e6 * clock.rate,
                "clock_error_ns": clock.error_ns,
            }
        )
    about = {"format": _FORMAT, "zero_ns": zero, "ranks": ranks}
    return {"traceEvents": events, "displayTimeUnit": "ms", "freescale": about}


def _since_zero(clock: ClockDrift, zero: int, at: int) -> int:
    return clock.first_ranks_time(at) - zero


def _beside(path: Path, rank: int) -> Path:
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
