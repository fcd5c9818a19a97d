"""What a run found, and its files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.cells import Cell

CANDIDATE = "freescale"


@dataclass(frozen=True)
class Timing:
    """One contestant in one cell, in microseconds over the rounds."""

    median_us: float
    quartile1_us: float
    quartile3_us: float

    @classmethod
    def of(cls, seconds: torch.Tensor) -> Timing:
        """Summarises samples in seconds, shape ``(rounds,)``."""
        quartiles = torch.quantile(seconds, torch.tensor([0.5, 0.25, 0.75], dtype=torch.float64))
        return cls(*(float(value) * 1e6 for value in quartiles))


@dataclass(frozen=True)
class CellResult:
    """All contestants in one cell.

    Attributes:
        op: one of ``cells.OPS``.
        size: bytes of a rank's input, as asked for.
        ranks: world size.
        busiest_bytes: output bytes of the rank with the largest output.
        total_bytes: output bytes of all ranks together.
        rounds: samples behind each timing.
        timings: by contestant.
    """

    op: str
    size: int
    ranks: int
    busiest_bytes: int
    total_bytes: int
    rounds: int
    timings: dict[str, Timing]

    @classmethod
    def of(cls, cell: Cell, samples: dict[str, torch.Tensor]) -> CellResult:
        """Summarises one cell's samples (seconds by contestant)."""
        rounds = min(len(seconds) for seconds in samples.values())
        timings = {name: Timing.of(seconds) for name, seconds in samples.items()}
        sizes = (cell.busiest_bytes, cell.total_bytes)
        return cls(cell.op, cell.size, cell.world_size, *sizes, rounds, timings)

    def median_us(self, name: str) -> float | None:
        """Median of a contestant, or None when it did not take part."""
        timing = self.timings.get(name)
        return None if timing is None else timing.median_us

    def gigabytes_per_second(self, name: str) -> float | None:
        """Output bytes of the busiest rank over the median, in GB/s (10^9 bytes)."""
        median = self.median_us(name)
        return None if median is None else self.busiest_bytes / median / 1e3

    def speedup(self, name: str, over: str) -> float | None:
        """How many times faster ``name`` is than ``over``; None when one did not take part."""
        mine, other = self.median_us(name), self.median_us(over)
        return None if mine is None or other is None else other / mine


def write_json(path: Path, results: Iterable[CellResult]) -> None:
    """Writes results so that ``read_json`` gives them back."""
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def read_json(path: Path) -> list[CellResult]:
    """Reads what ``write_json`` wrote."""
    return [
        CellResult(**{**row, "timings": {n: Timing(**t) for n, t in row["timings"].items()}})
        for row in json.loads(path.read_text())
    ]


def write_csv(path: Path, results: Sequence[CellResult]) -> None:
    """Writes one line per cell and contestant."""
    rows = [
        {
            "op": result.op,
            "size": result.size,
            "ranks": result.ranks,
            "contestant": name,
            **asdict(timing),
            "gigabytes_per_second": result.gigabytes_per_second(name),
            "rounds": result.rounds,
        }
        for result in results
        for name, timing in result.timings.items()
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
