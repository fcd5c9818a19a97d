"""Reads what torch.profiler has seen of one rank, whatever its backend: a Chrome trace file."""

import gzip
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from freescale_pg.observe.intervals import Intervals, subtract, union

# Work that c10d's backends announce to the profiler, by the name of the backend: it lasts from the
# call, or its start on the backend's thread, to its end. NCCL's lasts for the call on the host
# alone, and is to be seen on the device.
_WORK = re.compile(r"(freescale|gloo|mpi|ucc):(\w+)")
# Operators that start communication, or wait for it: no computation.
_COMMUNICATING = ("c10d::", "_c10d_functional", "c10d_functional", "freescale::", "symm_mem::")
_PARAMETERS = "record_param_comms"
# NCCL, AMD's and Microsoft's, which keep its names: ncclDevKernel_AllReduce_Sum_f32_RING_LL(...).
_NCCL_KERNEL = re.compile(r"(?:nccl|rccl|msccl)\w*?Kernel_?([A-Z][a-zA-Z]*)?", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep#(\d+)")
# torch.utils.data.DataLoader's own annotation.
_LOADER = re.compile(r"enumerate\(DataLoader\)")


@dataclass(frozen=True, slots=True)
class Collective:
    """One call of a collective, or one of its kernels.

    Attributes:
        op: Name of the operation, e.g. "all_reduce".
        begin: ns, of a clock that the ranks share as far as they keep time.
        end: Likewise.
        key: The same on all ranks that take part; None: not to be told from others.
    """

    op: str
    begin: int
    end: int
    key: tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's trace.

    Attributes:
        source: The file.
        rank: Of all ranks; None where the trace doesn't say.
        on_device: Whether a device computes.
        steps: When each step ran, by its number.
        compute: When kernels ran on the device, or operators on the host.
        loader: When the host waited for the loader.
        collectives: By their begin.
    """

    source: str
    rank: int | None
    on_device: bool
    steps: Mapping[int, tuple[int, int]]
    compute: Intervals
    loader: Intervals
    collectives: Sequence[Collective]


def read_trace(path: str | PathLike[str]) -> RankTrace:
    """Reads a file of ``torch.profiler.profile.export_chrome_trace``.

    Args:
        path: JSON, compressed if its name ends in ``.gz``.

    Raises:
        ValueError: It is no such file, or has no steps.
        OSError: It cannot be read.
    """
    loaded = _load(Path(path))
    base = int(loaded.get("baseTimeNanoseconds", 0))
    try:
        events = [_Event.of(each, base) for each in loaded["traceEvents"] if each.get("ph") == "X"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: an event of the trace cannot be understood: {error!r}") from None
    steps = {
        int(found[1]): event
        for event in events
        if event.category == "user_annotation" and (found := _STEP.fullmatch(event.name))
    }
    if not steps:
        raise ValueError(
            f"{path} has no steps: call step() of the profiler at the end of each, and export the"
            " trace of a cycle that has some"
        )
    kernels = [event for event in events if event.category == "kernel"]
    thread = next(iter(steps.values())).thread
    compute = _kernel_times(kernels) if kernels else _operator_times(events, thread)
    return RankTrace(
        source=str(path),
        rank=_rank_of(loaded),
        on_device=bool(kernels),
        steps={number: (step.begin, step.end) for number, step in sorted(steps.items())},
        compute=compute,
        loader=union(
            event.times for event in events if event.thread == thread and _LOADER.match(event.name)
        ),
        collectives=_collectives(events, sorted(step.begin for step in steps.values())),
    )


@dataclass(frozen=True, slots=True)
class _Event:
    """A complete event; times in ns."""

    name: str
    category: str
    thread: tuple[object, object]
    begin: int
    end: int
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, event: Mapping[str, Any], base: int) -> "_Event":
        begin = base + round(1000 * float(event["ts"]))
        return cls(
            str(event["name"]),
            str(event.get("cat", "")).lower(),
            (event.get("pid"), event.get("tid")),
            begin,
            begin + round(1000 * float(event.get("dur", 0))),
            event.get("args") or {},
        )

    @property
    def times(self) -> tuple[int, int]:
        return self.begin, self.end


def _load(path: Path) -> Mapping[str, Any]:
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        loaded = json.loads(text)
    except (gzip.BadGzipFile, EOFError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a Chrome trace in JSON: {error}") from None
    if not isinstance(loaded, Mapping) or not isinstance(loaded.get("traceEvents"), list):
        raise ValueError(f"{path} is not a Chrome trace: it has no list of traceEvents")
    if "freescale" in loaded:
        raise ValueError(
            f"{path} is a trace of freescale_pg.trace, which does not know what was computed;"
            " needed is one of torch.profiler"
        )
    return loaded


def _rank_of(loaded: Mapping[str, Any]) -> int | None:
    known = loaded.get("distributedInfo") or {}
    return int(known["rank"]) if "rank" in known else None


# --- What computes ------------------------------------------------------------------------------


def _kernel_times(kernels: Iterable[_Event]) -> Intervals:
    return union(event.times for event in kernels if not _NCCL_KERNEL.match(event.name))


def _operator_times(events: Iterable[_Event], thread: tuple[object, object]) -> Intervals:
    """When operators ran that call no others; between those there may be anything, waits too."""
    operators = [e for e in events if e.category == "cpu_op" and e.thread == thread]
    operators.sort(key=lambda event: (event.begin, -event.end))
    communicating = union(event.times for event in operators if _communicates(event.name))
    leaves = [
        event.times
        for event, following in zip_longest(operators, operators[1:])
        if following is None or following.begin >= event.end
    ]
    return subtract(union(leaves), communicating)


def _communicates(name: str) -> bool:
    return name == _PARAMETERS or name.startswith(_COMMUNICATING)


# --- What communicates --------------------------------------------------------------------------


def _collectives(events: Iterable[_Event], steps: Sequence[int]) -> list[Collective]:
    """All of them, by their begin; ``steps``: when each step began."""
    events = sorted(events, key=lambda event: event.begin)
    ordinals = _Ordinals(steps)
    found = [*_host_collectives(events, ordinals), *_device_collectives(events, ordinals)]
    return sorted(found, key=lambda each: each.begin)


class _Ordinals:
    """Tells collectives of a kind apart, where the trace does not, by their place in their step."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = steps
        self._counts: Counter[tuple[object, ...]] = Counter()

    def key_of(self, begin: int, *kind: object) -> tuple[object, ...]:
        """Must be called in the order of ``begin``."""
        of_step = (*kind, bisect_right(self._steps, begin))
        self._counts[of_step] += 1
        return (*of_step, self._counts[of_step])


def _host_collectives(events: Sequence[_Event], ordinals: _Ordinals) -> Iterable[Collective]:
    """From the backends' announcements of their work."""
    parameters = _Parameters(events)
    for event in events:
        if found := _WORK.fullmatch(event.name):
            op = found[2]
            key = parameters.key_of(event, op) or ordinals.key_of(event.begin, found[0])
            yield Collective(op, event.begin, event.end, key)


class _Parameters:
    """The records of communication, with the group and number of each collective."""

    def __init__(self, events: Iterable[_Event]) -> None:
        self._records: dict[tuple[tuple[object, object], str], list[_Event]] = defaultdict(list)
        for event in events:
            op = event.arguments.get("Collective name")
            if event.name == _PARAMETERS and op is not None:
                self._records[event.thread, op].append(event)

    def key_of(self, work: _Event, op: str) -> tuple[object, ...] | None:
        """Of the first record after the begin of a work, on its thread: the call makes both."""
        records = self._records.get((work.thread, op), [])
        place = bisect_left(records, work.begin, key=lambda event: event.begin)
        return _key(records[place].arguments, op) if place < len(records) else None


def _key(arguments: Mapping[str, Any], op: str) -> tuple[object, ...] | None:
    if "Seq" not in arguments or "Process Group Name" not in arguments:
        return None
    return op, arguments["Process Group Name"], arguments["Seq"]


def _device_collectives(events: Iterable[_Event], ordinals: _Ordinals) -> Iterable[Collective]:
    """Kernels that communicate, and copies between devices."""
    for event in events:
        if event.category == "kernel" and (found := _NCCL_KERNEL.match(event.name)):
            op = str(event.arguments.get("Collective name") or _snake(found[1] or "collective"))
            group = event.arguments.get("Process Group Name")
            key = _key(event.arguments, op) or ordinals.key_of(event.begin, op, group)
            yield Collective(op, event.begin, event.end, key)
        elif event.category == "gpu_memcpy" and "PtoP" in event.name:
            yield Collective("copy between devices", event.begin, event.end, None)


def _snake(name: str) -> str:
    """``AllReduce`` is ``all_reduce``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
