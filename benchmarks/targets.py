"""What freescale is meant to reach on one machine of two cores, as data.

A bound is a ratio inside one interleaved run (against gloo, MPI or the limit), an absolute time,
or the cost per byte against the same cell at two ranks. The scripts print beside each number
whether it is met, and ``verdicts.py`` does so for runs of ``freescale bench``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from freescale_pg.bench.cells import OPS
from freescale_pg.bench.results import CANDIDATE, CellResult

KIB = 1 << 10
MIB = 1 << 20
_ANY_SIZE = 1 << 62
_EXCHANGES = ("all_to_all_single", "all_to_all_single_ragged")
# The world size whose cost per byte the larger ones are held against.
BASELINE_RANKS = 2


class Measure(Enum):
    """What is compared with a target's bound; the value is how it is printed."""

    MEDIAN_US = "µs"
    VERSUS_GLOO = "gloo"
    VERSUS_MPI = "MPI"
    VERSUS_LIMIT = "limit"
    COST_PER_BYTE = "2-rank cost"


_AT_MOST = (Measure.MEDIAN_US, Measure.COST_PER_BYTE)


@dataclass(frozen=True)
class Target:
    """One promise about the cells it covers.

    Attributes:
        ops: operations covered.
        smallest, largest: input sizes covered, bytes, both ends included.
        ranks: world sizes covered.
        measure: what is compared.
        bound: at most this for a time or a cost, at least this for a ratio of speeds.
    """

    ops: tuple[str, ...]
    smallest: int
    largest: int
    ranks: tuple[int, ...]
    measure: Measure
    bound: float

    def covers(self, result: CellResult) -> bool:
        """Whether this target is about the cell."""
        in_size = self.smallest <= result.size <= self.largest
        return in_size and result.op in self.ops and result.ranks in self.ranks

    def is_met_by(self, value: float) -> bool:
        """Whether ``value`` reaches the bound."""
        return value <= self.bound if self.measure in _AT_MOST else value >= self.bound


def _exchange(size: int, measure: Measure, bound: float) -> Target:
    return Target(_EXCHANGES, size, size, (BASELINE_RANKS,), measure, bound)


TARGETS = (
    Target(("all_to_all_single",), 0, 4 * KIB, (2,), Measure.MEDIAN_US, 15.0),
    Target(("all_to_all_single",), 0, 4 * KIB, (2,), Measure.VERSUS_GLOO, 12.0),
    _exchange(MIB, Measure.VERSUS_GLOO, 6.0),
    _exchange(MIB, Measure.VERSUS_MPI, 1.0),
    _exchange(16 * MIB, Measure.VERSUS_GLOO, 5.0),
    _exchange(16 * MIB, Measure.VERSUS_MPI, 1.5),
    _exchange(16 * MIB, Measure.VERSUS_LIMIT, 0.8),
    _exchange(128 * MIB, Measure.VERSUS_GLOO, 3.0),
    _exchange(128 * MIB, Measure.VERSUS_MPI, 1.15),
    _exchange(128 * MIB, Measure.VERSUS_LIMIT, 0.9),
    Target(("all_gather_into_tensor",), MIB, _ANY_SIZE, (2,), Measure.VERSUS_GLOO, 8.0),
    Target(("all_gather_into_tensor",), MIB, _ANY_SIZE, (2,), Measure.VERSUS_MPI, 1.2),
    Target(("all_reduce",), MIB, _ANY_SIZE, (2,), Measure.VERSUS_GLOO, 2.0),
    Target(OPS, 0, _ANY_SIZE, (4, 8), Measure.VERSUS_GLOO, 3.0),
    Target(OPS, 0, _ANY_SIZE, (4, 8), Measure.COST_PER_BYTE, 2.0),
)

# freescale bench priority: an urgent 256 KiB exchange beside a background one of 256 MiB on another
# group.
URGENT_SLOWDOWN_AT_MOST = 3.0
BULK_LOSS_AT_MOST = 0.10
# idle.py: CPU seconds of a process that waits ten seconds in a collective.
IDLE_CPU_SECONDS_AT_MOST = 0.2
# import_time.py: what the entry point adds to ``import torch``.
IMPORT_MS_AT_MOST = 5.0
# balance.py: the heaviest rank's load over the least possible, for lognormal lengths; over the
# mean, for lengths like those of known data sets.
OVER_FLOOR_AT_MOST = 1.002
DATA_SET_IMBALANCE_AT_MOST = 1.005
# Time of a plan on one core, by ranks and samples per rank.
PLAN_MS_AT_MOST = {(64, 128): 3.0, (256, 128): 12.0, (256, 1024): 80.0}
# Any step of an epoch of 10^9 samples, and the memory that the sampler takes for it.
BILLION_STEP_MS_AT_MOST = 5.0
BILLION_MIB_AT_MOST = 100.0
# online_balance.py: share of the samples that change rank, with 128 or more on each; the heaviest
# rank's load over the least possible.
ONLINE_MOVED_SHARE_AT_MOST = 0.05
ONLINE_OVER_FLOOR_AT_MOST = 1.05
# freescale bench overlap: by how much less of the exchange is exposed, by the part of the rows that
# consecutive batches share.
EXPOSED_LESS_BY = {0.1: 0.90, 0.3: 0.75}
# simulation.py: how far a predicted step time may be from the measured one.
PREDICTED_WITHIN = 0.10
# bubbles.py, emulated_cluster.py: what part of the bubbles all techniques remove (FreeScale, arXiv
# 2604.24073).
BUBBLES_GONE = 0.903
# bubble_overhead.py: what a BubbleMeter adds to a step, as a part of it.
BUBBLE_OVERHEAD_AT_MOST = 0.005


@dataclass(frozen=True)
class Bound:
    """What a single number has to reach.

    Attributes:
        value: the bound itself.
        is_most: the number may be at most this; otherwise it must be at least this.
        of: what the number is, in the words of a table.
    """

    value: float
    is_most: bool
    of: str

    def is_met_by(self, value: float) -> bool:
        """Whether ``value`` reaches the bound."""
        return value <= self.value if self.is_most else value >= self.value

    def __str__(self) -> str:
        """For example ``TCP ≥ 0.95``."""
        return f"{self.of} {'≤' if self.is_most else '≥'} {self.value:g}"


# multihost.py: ratios of medians, but for the seconds of CPU time.
BETWEEN_HOSTS = {
    "limited exchange over TCP": Bound(0.95, False, "TCP"),
    "exchange over TCP": Bound(1.0, False, "TCP"),
    "exchange over gloo": Bound(2.0, False, "gloo"),
    "latency over gloo": Bound(0.5, True, "gloo"),
    "gathered over direct": Bound(2.0, False, "direct"),
    "bytes of a gather": Bound(1.03, True, "least"),
    "urgent slowdown": Bound(1.3, True, "idle"),
    "bulk loss": Bound(0.03, True, "loss"),
    "idle": Bound(0.05, True, "s"),
    "two rails": Bound(1.9, False, "one"),
}


@dataclass(frozen=True)
class Verdict:
    """A target held against what was measured."""

    target: Target
    value: float

    @property
    def met(self) -> bool:
        """Whether the target is reached."""
        return self.target.is_met_by(self.value)

    def __str__(self) -> str:
        """For example ``met gloo 7.1 ≥ 6`` or ``MISSED µs 18.21 ≤ 15``."""
        sign = "≤" if self.target.measure in _AT_MOST else "≥"
        word = "met" if self.met else "MISSED"
        return f"{word} {self.target.measure.value} {self.value:.4g} {sign} {self.target.bound:g}"


def cost_per_byte(result: CellResult) -> float | None:
    """Microseconds per byte that the ranks together receive, or None without freescale.

    All ranks' bytes are counted, since on a given number of cores twice the ranks have twice the
    bytes to move in the same cell.
    """
    median = result.median_us(CANDIDATE)
    return None if median is None else median / result.total_bytes


def judge(result: CellResult, baseline: Iterable[CellResult] = ()) -> list[Verdict]:
    """Holds every target that covers a cell against it.

    Args:
        result: the cell.
        baseline: results at two ranks, for the cost per byte.

    Returns:
        One verdict a target; targets whose contestants did not take part are left out.
    """
    values = {
        Measure.MEDIAN_US: result.median_us(CANDIDATE),
        Measure.VERSUS_GLOO: result.speedup(CANDIDATE, "gloo"),
        Measure.VERSUS_MPI: result.speedup(CANDIDATE, "mpi"),
        Measure.VERSUS_LIMIT: result.speedup(CANDIDATE, "limit"),
        Measure.COST_PER_BYTE: _relative_cost(result, baseline),
    }
    covering = [target for target in TARGETS if target.covers(result)]
    return [
        Verdict(target, value)
        for target in covering
        if (value := values[target.measure]) is not None
    ]


def _relative_cost(result: CellResult, baseline: Iterable[CellResult]) -> float | None:
    same_cell = (
        cost_per_byte(other)
        for other in baseline
        if (other.op, other.size, other.ranks) == (result.op, result.size, BASELINE_RANKS)
    )
    before, now = next(same_cell, None), cost_per_byte(result)
    return None if before is None or now is None else now / before
