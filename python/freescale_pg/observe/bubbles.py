"""Bubbles of a run that torch.profiler has seen, from the traces of its ranks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike

from freescale_pg.observe.intervals import Intervals, clip, subtract, total, union
from freescale_pg.observe.kineto import Collective, RankTrace, read_trace
from freescale_pg.observe.report import Blocked, BubbleReport, RankTimes, StepTime


def read_traces(paths: Iterable[str | PathLike[str]]) -> BubbleReport:
    """Finds where the time of each step went, in traces of ``torch.profiler``.

    Where a device computes, *compute* is when a kernel runs on it that does not communicate,
    *blocked* when none does and communication is under way, and *idle* the rest. Where the host
    computes, *blocked* is when communication is under way and the thread of the steps runs no
    operator, and *compute* the rest. Of what was blocked, *stragglers* is what came before the last
    rank had begun the same collective, as far as the traces of all its ranks are given.
    ``docs/bubbles.md`` has the details.

    Args:
        paths: One file for each rank, as ``export_chrome_trace`` wrote it.

    Raises:
        ValueError: No files; one that cannot be used; two of one rank; ranks whose steps differ.
        OSError: A file cannot be read.
    """
    traces = [read_trace(path) for path in paths]
    if not traces:
        raise ValueError("no traces are given")
    by_rank = _by_rank(traces)
    _check_steps(by_rank)
    readiness = _readiness(traces)
    return BubbleReport(
        tuple(
            RankTimes(
                rank,
                tuple(_step_time(trace, number, readiness) for number in trace.steps),
            )
            for rank, trace in sorted(by_rank.items())
        )
    )


def _by_rank(traces: Sequence[RankTrace]) -> dict[int, RankTrace]:
    found: dict[int, RankTrace] = {}
    for place, trace in enumerate(traces):
        rank = place if trace.rank is None else trace.rank
        if rank in found:
            raise ValueError(f"{found[rank].source} and {trace.source} are both of rank {rank}")
        found[rank] = trace
    return found


def _check_steps(by_rank: Mapping[int, RankTrace]) -> None:
    (first, model), *others = by_rank.items()
    for rank, trace in others:
        if list(trace.steps) != list(model.steps):
            raise ValueError(
                f"rank {first} has steps {list(model.steps)}, but rank {rank} has steps"
                f" {list(trace.steps)}: traces of the same steps are needed"
            )


def _readiness(traces: Iterable[RankTrace]) -> dict[tuple[object, ...], int]:
    """When the last rank began each collective; not of those that were seen on one rank alone."""
    begins: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for trace in traces:
        for each in trace.collectives:
            if each.key is not None:
                begins[each.key].append(each.begin)
    return {key: max(of_ranks) for key, of_ranks in begins.items() if len(of_ranks) > 1}


def _step_time(
    trace: RankTrace, number: int, readiness: Mapping[tuple[object, ...], int]
) -> StepTime:
    begin, end = trace.steps[number]
    computing = clip(trace.compute, begin, end)
    under_way = [each for each in trace.collectives if each.begin < end and each.end > begin]
    communicating = clip(union((each.begin, each.end) for each in under_way), begin, end)
    loading = clip(trace.loader, begin, end)
    if trace.on_device:
        loading = subtract(loading, union([*communicating, *computing]))
        waiting = subtract(communicating, computing)
    else:
        waiting = subtract(communicating, union([*computing, *loading]))
    loader = total(loading)
    rest = end - begin - total(waiting) - loader
    compute = total(computing) if trace.on_device else rest
    blocked = _share_out(waiting, under_way, readiness)
    return StepTime(number, end - begin, compute, loader, rest - compute, blocked)


def _share_out(
    waiting: Intervals,
    under_way: Sequence[Collective],
    readiness: Mapping[tuple[object, ...], int],
) -> tuple[Blocked, ...]:
    """Gives each moment of waiting to the collective that has been under way for longest."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    left = waiting
    for each in sorted(under_way, key=lambda each: each.begin):
        own = clip(left, each.begin, each.end)
        if not len(own):
            continue
        left = subtract(left, own)
        ready = each.begin if each.key is None else readiness.get(each.key, each.begin)
        stragglers = total(clip(own, each.begin, max(each.begin, min(ready, each.end))))
        sums[each.op][0] += stragglers
        sums[each.op][1] += total(own) - stragglers
    return tuple(Blocked(op, None, *times) for op, times in sums.items())
