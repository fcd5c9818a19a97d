"""The table of a run of collectives: times, speeds and ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from freescale_pg.bench.results import CANDIDATE, CellResult
from freescale_pg.bench.table import markdown, microseconds_text, ratio_text, size_text

# Not rivals, but bounds: they come last.
_BOUNDS = ("floor", "limit")

# A further column: its header, and what it says of a cell.
Column = tuple[str, Callable[[CellResult], str]]


def report(results: Sequence[CellResult], last: Column | None = None) -> str:
    """One Markdown table for each world size.

    Args:
        results: Cells of one or more world sizes.
        last: A column to add.
    """
    world_sizes = sorted({result.ranks for result in results})
    return "\n\n".join(
        f"{ranks} ranks; median µs (GB/s)\n\n"
        + _table([result for result in results if result.ranks == ranks], last)
        for ranks in world_sizes
    )


def _table(results: Sequence[CellResult], last: Column | None) -> str:
    names = _names(results)
    rivals = [name for name in names if name != CANDIDATE and CANDIDATE in names]
    header = ["op", "size", *names, *(f"vs {rival}" for rival in rivals)]
    rows = [_row(result, names, rivals) for result in results]
    if last is not None:
        header.append(last[0])
        rows = [[*row, last[1](result)] for row, result in zip(rows, results, strict=True)]
    return markdown(header, rows)


def _names(results: Sequence[CellResult]) -> list[str]:
    """All contestants, those that failed too."""
    names = dict.fromkeys(
        name for result in results for name in [*result.timings, *result.failures]
    )
    return sorted(names, key=lambda name: (name != CANDIDATE, name in _BOUNDS))


def _row(result: CellResult, names: Sequence[str], rivals: Sequence[str]) -> list[str]:
    speedups = [ratio_text(result.speedup(CANDIDATE, rival)) for rival in rivals]
    times = [_time_and_speed(result, name) for name in names]
    return [result.op, size_text(result.size), *times, *speedups]


def _time_and_speed(result: CellResult, name: str) -> str:
    if name in result.failures:
        return "FAILED"
    speed = result.gigabytes_per_second(name)
    return f"{microseconds_text(result.median_us(name))} ({ratio_text(speed)})"
