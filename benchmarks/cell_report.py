"""The table of a run of collectives.py: times, speeds, ratios and targets."""

from __future__ import annotations

from collections.abc import Sequence

from bench.results import CANDIDATE, CellResult
from bench.roster import CONTESTANTS
from bench.table import markdown, microseconds_text, ratio_text, size_text
from targets import BASELINE_RANKS, judge


def report(results: Sequence[CellResult]) -> str:
    """One Markdown table for each world size, and how many targets are met.

    Args:
        results: cells of one or more world sizes. Those at two ranks are the baseline of the cost
            per byte at the others.
    """
    baseline = [result for result in results if result.ranks == BASELINE_RANKS]
    world_sizes = sorted({result.ranks for result in results})
    sections = [
        f"{ranks} ranks; median µs (GB/s)\n\n"
        + _table([result for result in results if result.ranks == ranks], baseline)
        for ranks in world_sizes
    ]
    return "\n\n".join([*sections, _summary(results, baseline)])


def _summary(results: Sequence[CellResult], baseline: Sequence[CellResult]) -> str:
    verdicts = [verdict for result in results for verdict in judge(result, baseline)]
    if not verdicts:
        return "targets: none of them can be judged by this run"
    met = sum(verdict.met for verdict in verdicts)
    return f"targets: {met} of {len(verdicts)} judged here are met"


def _table(results: Sequence[CellResult], baseline: Sequence[CellResult]) -> str:
    names = [name for name in CONTESTANTS if any(name in result.timings for result in results)]
    rivals = [name for name in names if name != CANDIDATE and CANDIDATE in names]
    header = ["op", "size", *names, *(f"vs {rival}" for rival in rivals), "targets"]
    return markdown(header, [_row(result, names, rivals, baseline) for result in results])


def _row(
    result: CellResult, names: Sequence[str], rivals: Sequence[str], baseline: Sequence[CellResult]
) -> list[str]:
    speedups = [ratio_text(result.speedup(CANDIDATE, rival)) for rival in rivals]
    verdicts = "; ".join(str(verdict) for verdict in judge(result, baseline))
    times = [_time_and_speed(result, name) for name in names]
    return [result.op, size_text(result.size), *times, *speedups, verdicts or "–"]


def _time_and_speed(result: CellResult, name: str) -> str:
    speed = result.gigabytes_per_second(name)
    return f"{microseconds_text(result.median_us(name))} ({ratio_text(speed)})"
