"""What each rank did when, in a window of steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from freescale_pg.observe.intervals import Intervals, clip, subtract, union
from freescale_pg.report.run import PRIORITIES, Join, RankRun, Run, Wait

# What comes first in a training also makes plans, buffers and code; it is no picture of the rest.
_WARM_UP = 2


@dataclass(frozen=True)
class Window:
    """A window of steps.

    Attributes:
        first: Number of its first step.
        last: Number of its last one.
        begin: Of the first step, or of loading for it, on the rank that began first; ns since the
            run's zero.
        end: Of the last step on the rank that ended it last.
        why: Why these steps, for people.
    """

    first: int
    last: int
    begin: int
    end: int
    why: str


@dataclass(frozen=True)
class Lane:
    """One rank in a window; all states are disjoint.

    Attributes:
        rank: Which.
        steps: Number, begin and end of each.
        states: When it did what: "compute", "loader", "stragglers", or, where it was blocked by
            communication that nothing hid, the priority.
        arrivals: When messages came in, by priority.
    """

    rank: int
    steps: tuple[tuple[int, int, int], ...]
    states: Mapping[str, Intervals]
    arrivals: Mapping[str, Intervals]


def window_of(run: Run, steps: int, first: int | None = None) -> Window | None:
    """Chooses the steps to show.

    Args:
        run: Of which.
        steps: How many, if there are so many.
        first: The first one; None: the third that is traced, or an earlier one where too few
            follow.

    Returns:
        None where no rank has traced a whole step.

    Raises:
        ValueError: ``steps`` is not positive, or no rank has traced a step from ``first`` on.
    """
    if steps <= 0:
        raise ValueError(f"steps must be positive, got {steps}")
    traced = sorted({step for rank in run.ranks.values() for step in _traced(rank)})
    if not traced:
        return None
    if first is None:
        place = max(0, min(_WARM_UP, len(traced) - steps))
        why = "the first that are traced" + (f", but for {place} that warm up" if place else "")
    else:
        place = int(np.searchsorted(traced, first))
        why = f"from step {first} on"
        if place == len(traced):
            raise ValueError(
                f"no rank has traced step {first} or a later one: there are steps {traced[0]} to"
                f" {traced[-1]}"
            )
    chosen = traced[place : place + steps]
    spans = [
        (_begin_of(rank, place), step.end)
        for rank in run.ranks.values()
        for place, step in enumerate(rank.steps)
        if chosen[0] <= step.time.number <= chosen[-1]
    ]
    begin, end = min(begin for begin, _ in spans), max(end for _, end in spans)
    return Window(chosen[0], chosen[-1], begin, max(end, begin + 1), why)


def lane_of(rank: RankRun, window: Window) -> Lane:
    """Returns what a rank did in a window. What is not blocked and no loader's is computing."""
    steps = [each for each in rank.steps if window.first <= each.time.number <= window.last]
    spans = union((each.begin, each.end) for each in steps)
    blocked = _blocked(rank, {each.thread for each in steps}, window)
    taken: Intervals = union([])
    states: dict[str, Intervals] = {}
    for state in ("stragglers", *PRIORITIES):
        states[state] = subtract(blocked[state], taken)
        taken = union([*taken, *states[state]])
    states["loader"] = subtract(clip(rank.loads, window.begin, window.end), taken)
    taken = union([*taken, *states["loader"]])
    states["compute"] = subtract(spans, taken)
    return Lane(
        rank.rank,
        tuple((each.time.number, each.begin, each.end) for each in steps),
        states,
        _arrivals(rank, window),
    )


def gathered(times: Intervals, gap: int) -> Intervals:
    """Returns the intervals with those joined that are less than ``gap`` ns apart."""
    grown = union((begin, end + gap) for begin, end in times)
    return np.column_stack([grown[:, 0], grown[:, 1] - gap]) if len(grown) else grown


def _traced(rank: RankRun) -> Iterator[int]:
    if rank.trace is not None:
        begin = rank.trace.begin
        yield from (step.time.number for step in rank.steps if step.begin >= begin)


def _begin_of(rank: RankRun, place: int) -> int:
    """When a step began, with the load before it, which is counted for it."""
    begin = rank.steps[place].begin
    free = rank.steps[place - 1].end if place else min(begin, 0)
    before = rank.loads[(rank.loads[:, 0] >= free) & (rank.loads[:, 1] <= begin)]
    return int(before[-1, 0]) if len(before) else begin


def _blocked(rank: RankRun, threads: set[int], window: Window) -> dict[str, Intervals]:
    """When one of some threads waited, by what for."""
    pieces: dict[str, list[tuple[int, int]]] = {each: [] for each in ("stragglers", *PRIORITIES)}
    for wait, begin, end in _waits(rank, threads, window):
        begin, end = max(begin, window.begin), min(end, window.end)
        ready = min(max(wait.ready, begin), end)
        pieces["stragglers"].append((begin, ready))
        pieces[wait.priority].append((ready, end))
    return {state: union(each) for state, each in pieces.items()}


def _waits(rank: RankRun, threads: set[int], window: Window) -> Iterator[tuple[Wait, int, int]]:
    """Yields waits of some threads, and those of others while they awaited these."""
    if rank.trace is None:
        return
    waits = [each for each in rank.trace.waits if _touches(each, window)]
    joins = [each for each in rank.trace.joins if _touches(each, window)]
    yield from ((wait, wait.begin, wait.end) for wait in waits if wait.thread in threads)
    for join in joins:
        if join.thread in threads:
            for wait in waits:
                if wait.thread == join.joined and wait.begin < join.end and wait.end > join.begin:
                    yield wait, max(wait.begin, join.begin), min(wait.end, join.end)


def _touches(event: Wait | Join, window: Window) -> bool:
    return event.begin < window.end and event.end > window.begin


def _arrivals(rank: RankRun, window: Window) -> dict[str, Intervals]:
    pieces: dict[str, list[tuple[int, int]]] = {priority: [] for priority in PRIORITIES}
    for each in rank.trace.messages if rank.trace is not None else ():
        if each.is_incoming and each.end >= window.begin and each.begin <= window.end:
            # One that came with its header takes no time, and is to be seen.
            pieces[each.priority].append((each.begin, max(each.end, each.begin + 1)))
    return {
        priority: clip(union(of_priority), window.begin, window.end)
        for priority, of_priority in pieces.items()
    }


def spread(items: Sequence[RankRun], most: int) -> list[RankRun]:
    """Returns so many items at most, evenly spaced from the first to the last."""
    if len(items) <= most:
        return list(items)
    places: Iterable[int] = np.linspace(0, len(items) - 1, most).round().astype(int)
    return [items[place] for place in places]
