"""Chrome's trace event format: a process for each rank, and lanes of what went on at a time.

The format is described in Google's document "Trace Event Format"; Perfetto and chrome://tracing
open it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from freescale_pg._priority import Priority

TraceEvent = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that took time, as a trace shows it.

    Attributes:
        lane: Where it is shown: lanes are sorted by this, and the last part is the lane's name.
        category: "call", "wait", "join" or "message".
        name: Of the slice.
        begin: ns of the rank's monotonic clock.
        end: Likewise.
        stragglers_until: Up to when other ranks were waited for; 0: they were not.
        arguments: What is shown when it is selected.
    """

    lane: tuple[int, int, int, str]
    category: str
    name: str
    begin: int
    end: int
    stragglers_until: int
    arguments: Mapping[str, Any]


def slice_of(event: Any) -> Slice:
    """Returns how an event of the engine (``_C.Event``) is shown."""
    return _MAKERS[event.kind](event)


def _call(event: Any) -> Slice:
    arguments = {
        **_common(event),
        "bytes_in": event.bytes,
        "paths": list(event.paths),
        "failed": event.failed,
    }
    lane = (0, 0, 0, f"calls of {event.op}")
    return Slice(lane, "call", _title(event), event.begin, event.end, event.ready, arguments)


def _wait(event: Any) -> Slice:
    arguments = {"priority": Priority(event.priority).name, "thread": event.thread}
    return Slice(
        _thread_lane(event), "wait", event.op, event.begin, event.end, event.ready, arguments
    )


def _join(event: Any) -> Slice:
    arguments = {"thread": event.thread, "joined": event.joined}
    name = f"for thread {event.joined}"
    return Slice(_thread_lane(event), "join", name, event.begin, event.end, 0, arguments)


def _thread_lane(event: Any) -> tuple[int, int, int, str]:
    return (1, event.thread, 0, f"thread {event.thread} waits")


def _message_out(event: Any) -> Slice:
    return _message(event, 0, "to")


def _message_in(event: Any) -> Slice:
    return _message(event, 1, "from")


def _message(event: Any, direction: int, word: str) -> Slice:
    level = Priority(event.priority)
    # A peer's lanes stand together, by direction and then from the most urgent down.
    lane = (2 + event.peer, direction, int(level), f"{word} rank {event.peer}, {level.name}")
    arguments = {**_common(event), word: event.peer, "bytes": event.bytes}
    if event.end > event.begin:
        arguments["GB/s"] = round(event.bytes / (event.end - event.begin), 3)
    return Slice(lane, "message", _title(event), event.begin, event.end, 0, arguments)


_MAKERS: dict[str, Callable[[Any], Slice]] = {
    "call": _call,
    "wait": _wait,
    "join": _join,
    "message_out": _message_out,
    "message_in": _message_in,
}


def _title(event: Any) -> str:
    return f"{event.op} #{event.sequence}" if event.sequence else str(event.op)


def _common(event: Any) -> dict[str, Any]:
    return {"priority": Priority(event.priority).name, "group": f"{event.group:016x}"}


def trace_events(
    rank: int, title: str, slices: Iterable[Slice], since_zero: Callable[[int], int]
) -> list[TraceEvent]:
    """Returns the events of one rank.

    Args:
        rank: Becomes the process.
        title: Of the process.
        slices: Of the rank, in any order.
        since_zero: Turns a time of the rank's clock into one since the trace's zero; ns.
    """
    by_lane: dict[tuple[int, int, int, str], list[Slice]] = defaultdict(list)
    for each in slices:
        by_lane[each.lane].append(each)
    found = _labels(rank, None, "process", title, rank)
    number = 0
    for lane in sorted(by_lane):
        for place, row in enumerate(_rows(by_lane[lane])):
            number += 1
            # A lane with slices at the same time has several rows: viewers want one in the other.
            name = lane[-1] if place == 0 else f"{lane[-1]} ({place + 1})"
            found += _labels(rank, number, "thread", name, number)
            found += [event for each in row for event in _shown(rank, number, each, since_zero)]
    return found


def _rows(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Shares slices out to as few rows as they need not to overlap."""
    rows: list[list[Slice]] = []
    for each in sorted(slices, key=lambda each: (each.begin, each.end)):
        free = next((row for row in rows if row[-1].end <= each.begin), None)
        if free is None:
            rows.append([each])
        else:
            free.append(each)
    return rows


def _shown(
    rank: int, lane: int, each: Slice, since_zero: Callable[[int], int]
) -> Iterable[TraceEvent]:
    late = max(0, min(each.stragglers_until, each.end) - each.begin)
    # The format has microseconds.
    begin, end = since_zero(each.begin), since_zero(each.end)
    where = {"ph": "X", "pid": rank, "tid": lane, "ts": begin / 1e3}
    arguments = {**each.arguments, "stragglers_ns": late} if late else dict(each.arguments)
    dur = (end - begin) / 1e3
    yield {**where, "name": each.name, "cat": each.category, "dur": dur, "args": arguments}
    if late:
        yield {**where, "name": "stragglers", "cat": "stragglers", "dur": late / 1e3, "args": {}}


def _labels(rank: int, lane: int | None, what: str, name: str, place: int) -> list[TraceEvent]:
    of = {"ph": "M", "pid": rank} if lane is None else {"ph": "M", "pid": rank, "tid": lane}
    return [
        {**of, "name": f"{what}_name", "args": {"name": name}},
        {**of, "name": f"{what}_sort_index", "args": {"sort_index": place}},
    ]
