"""What a run of collectives found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from freescale_pg.bench.cells import Cell

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
        failures: by contestant that was left out, why.
    """

    op: str
    size: int
    ranks: int
    busiest_bytes: int
    total_bytes: int
    rounds: int
    timings: dict[str, Timing]
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        cell: Cell,
        samples: Mapping[str, torch.Tensor],
        failures: Mapping[str, str] | None = None,
    ) -> CellResult:
        """Summarises one cell's samples (seconds by contestant)."""
        rounds = min((len(seconds) for seconds in samples.values()), default=0)
        timings = {name: Timing.of(seconds) for name, seconds in samples.items()}
        sizes = (cell.busiest_bytes, cell.total_bytes)
        left_out = dict(failures or {})
        return cls(cell.op, cell.size, cell.world_size, *sizes, rounds, timings, left_out)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> CellResult:
        """Reads what ``dataclasses.asdict`` made of one."""
        timings = {name: Timing(**timing) for name, timing in record["timings"].items()}
        return cls(**{**record, "timings": timings})

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

    def lines(self) -> list[dict[str, Any]]:
        """One flat line for each contestant, also for those that failed."""
        return [
            *(self._line(name, asdict(timing), "") for name, timing in self.timings.items()),
            *(
                self._line(name, dict.fromkeys(Timing.__dataclass_fields__), message)
                for name, message in self.failures.items()
            ),
        ]

    def _line(self, name: str, timing: dict[str, Any], failure: str) -> dict[str, Any]:
        return {
            "op": self.op,
            "size": self.size,
            "ranks": self.ranks,
            "contestant": name,
            **timing,
            "gigabytes_per_second": self.gigabytes_per_second(name),
            "times_slower_than_freescale": self.speedup(CANDIDATE, name),
            "rounds": self.rounds,
            "failure": failure,
        }
