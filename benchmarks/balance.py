"""How equal the loads of ranks are after balancing, and how long the plan of a step takes.

    python benchmarks/balance.py                           # all cells: 15 seconds
    python benchmarks/balance.py --ranks 8,64 --samples-per-rank 128 --rounds 20
    python benchmarks/balance.py --json out.json --csv out.csv --plot out.svg
    python benchmarks/balance.py --billion                 # an epoch of 10^9 samples; 2 GB on disk

A cell is a set of lengths, a number of ranks and of samples per rank. In each round a global batch
is drawn from the lengths by the sampler's own shuffled order, and every contestant deals the same
batch out. A sample of length L costs L + L²/1024. Shown are means over the rounds of the heaviest
rank's load divided by the mean load; *floor* is the least that is possible: the dearest sample with
the cheapest that must accompany it, or 1. *Over floor* is the worst round of freescale's load over
the floor; *over bound* is the same for a bound that also knows of several dear samples that compete
for the cheapest (balancing/bounds.py). *Plan* is the median time of the planner alone on integer
costs, *step* that of all that the sampler does for a step (order, lengths, costs, plan, and what it
keeps for its statistics): processor time of the one thread that does it, so that other work on the
machine does not count.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from balancing.bounds import least_peak
from balancing.length_sets import LENGTH_SETS, Integers, lognormal
from balancing.partitions import CONTESTANTS, freescale
from freescale_pg import BalancedBatchSampler
from freescale_pg.balance import Quadratic
from freescale_pg.balance.epoch_order import EpochOrder
from freescale_pg.balance.global_batch import integer_costs
from freescale_pg.bench.arguments import integers
from freescale_pg.bench.table import markdown
from targets import (
    BILLION_MIB_AT_MOST,
    BILLION_STEP_MS_AT_MOST,
    DATA_SET_IMBALANCE_AT_MOST,
    OVER_FLOOR_AT_MOST,
    PLAN_MS_AT_MOST,
)

_COST = Quadratic(1, 1 / 1024)
_GENERATED = "lognormal"
_DATA_SET_CELL = (8, 32)  # ranks and samples per rank, for sets of real sizes
_BILLION = 1_000_000_000
_BILLION_ROUNDS = 100
_BILLION_CELL = (8, 128)
_BILLION_BATCHES = (8 * 128, 512 * 128, 256 * 1024)


@dataclass(frozen=True)
class CellResult:
    """All contestants in one cell.

    Attributes:
        lengths: Name of the set of lengths.
        ranks: World size.
        samples_per_rank: Of each step.
        rounds: Global batches.
        imbalance: Mean over the rounds of heaviest over mean load, by contestant.
        floor: Mean over the rounds of the least possible.
        over_floor: freescale's heaviest load over the floor in the worst round.
        over_bound: The same over ``least_peak``.
        worst: freescale's heaviest over mean load in the worst round.
        plan_ms: Median time of the planner.
        step_ms: Median time of a step of the sampler.
    """

    lengths: str
    ranks: int
    samples_per_rank: int
    rounds: int
    imbalance: dict[str, float]
    floor: float
    over_floor: float
    over_bound: float
    worst: float
    plan_ms: float
    step_ms: float

    def verdict(self) -> str:
        """The targets that cover this cell, and whether they are met."""
        if self.lengths == _GENERATED:
            verdicts = [_judged("over floor", self.over_floor, OVER_FLOOR_AT_MOST)]
        else:
            verdicts = [_judged("worst", self.worst, DATA_SET_IMBALANCE_AT_MOST)]
        limit = PLAN_MS_AT_MOST.get((self.ranks, self.samples_per_rank))
        if limit is not None:
            verdicts.append(_judged("plan ms", self.plan_ms, limit))
        return ", ".join(verdicts)


def _judged(name: str, value: float, limit: float) -> str:
    return f"{'met' if value <= limit else 'MISSED'} {name} {value:.5g} ≤ {limit:g}"


def measure(
    name: str, lengths: Integers, ranks: int, samples_per_rank: int, rounds: int
) -> CellResult:
    """Measures one cell."""
    sampler = BalancedBatchSampler(
        lengths, samples_per_rank, num_replicas=ranks, rank=0, drop_last=True, cost_model=_COST
    )
    imbalance: dict[str, list[float]] = {contestant: [] for contestant in CONTESTANTS}
    floors, bounds, plan_seconds, step_seconds = [], [], [], []
    for number in range(rounds):
        epoch, step = divmod(number, len(sampler))
        sampler.set_epoch(epoch)
        start = time.thread_time()
        plan = sampler.plan(step)
        floors.append(plan.balance.floor)
        step_seconds.append(time.thread_time() - start)
        costs, _ = integer_costs(plan.costs)
        bounds.append(least_peak(costs, ranks) / (int(costs.sum()) / ranks))
        plan_seconds.append(_seconds(partial(freescale, costs, ranks), time.thread_time))
        for contestant, partition in CONTESTANTS.items():
            loads = np.bincount(partition(costs, ranks), weights=costs, minlength=ranks)
            imbalance[contestant].append(float(loads.max() / loads.mean()))
    ours = imbalance["freescale"]
    return CellResult(
        name,
        ranks,
        samples_per_rank,
        rounds,
        {contestant: statistics.fmean(ratios) for contestant, ratios in imbalance.items()},
        statistics.fmean(floors),
        max(ratio / floor for ratio, floor in zip(ours, floors, strict=True)),
        max(ratio / bound for ratio, bound in zip(ours, bounds, strict=True)),
        max(ours),
        statistics.median(plan_seconds) * 1e3,
        statistics.median(step_seconds) * 1e3,
    )


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start


def measure_all(options: argparse.Namespace) -> list[CellResult]:
    """Measures all cells that were asked for; says which sets of lengths are missing, and why."""
    results = []
    for name in options.lengths:
        try:
            lengths = LENGTH_SETS[name]()
        except RuntimeError as error:
            print(f"{name} is left out: {error}\n")
            continue
        cells = [(w, b) for b in options.samples_per_rank for w in options.ranks]
        for ranks, samples_per_rank in cells if name == _GENERATED else [_DATA_SET_CELL]:
            results.append(measure(name, lengths, ranks, samples_per_rank, options.rounds))
    return results


def report(results: Sequence[CellResult]) -> str:
    """The findings as a Markdown table, with the targets beside them."""
    header = ["lengths", "W × b", *CONTESTANTS, "floor", "over floor", "over bound"]
    header += ["plan ms", "step ms", "targets"]
    rows = [
        [
            result.lengths,
            f"{result.ranks} × {result.samples_per_rank}",
            *(f"{result.imbalance[contestant]:.4f}" for contestant in CONTESTANTS),
            f"{result.floor:.4f}",
            f"{result.over_floor:.5f}",
            f"{result.over_bound:.5f}",
            f"{result.plan_ms:.2f}",
            f"{result.step_ms:.2f}",
            result.verdict(),
        ]
        for result in results
    ]
    return markdown(header, rows)


def measure_billion(samples: int, rounds: int) -> str:
    """Plans steps all over an epoch whose lengths lie in a file; returns the findings."""
    before = _anonymous_mib()
    lines = [_measure_order(samples, per_step, rounds) for per_step in _BILLION_BATCHES]
    ranks, samples_per_rank = _BILLION_CELL
    with tempfile.NamedTemporaryFile(suffix=".lengths") as file:
        pattern = lognormal().astype(np.uint16)
        for start in range(0, samples, len(pattern)):
            pattern[: samples - start].tofile(file)
        file.flush()
        sampler = BalancedBatchSampler(
            np.memmap(file.name, dtype=np.uint16, mode="r"),
            samples_per_rank,
            num_replicas=ranks,
            rank=0,
            cost_model=_COST,
        )
        steps = _spread(len(sampler), rounds)
        milliseconds = [_seconds(partial(sampler.plan, s), time.perf_counter) * 1e3 for s in steps]
    grown = _anonymous_mib() - before
    lines += [
        f"whole steps of {ranks} × {samples_per_rank}, lengths from a mapped file: median"
        f" {statistics.median(milliseconds):.3f} ms; the first {milliseconds[0]:.1f} ms, when the"
        " system maps the file's pages",
        _judged("MiB more memory", grown, BILLION_MIB_AT_MOST),
    ]
    return "\n".join(lines)


def _measure_order(samples: int, per_step: int, rounds: int) -> str:
    order = EpochOrder(samples, per_step, shuffle=True, drop_last=False, seed=0)
    steps = _spread(order.steps, rounds)
    seconds = [_seconds(partial(order.indices, 0, step), time.thread_time) for step in steps]
    verdict = _judged("slowest ms", max(seconds) * 1e3, BILLION_STEP_MS_AT_MOST)
    return f"order of {samples} samples, {rounds} steps of {per_step} from first to last: {verdict}"


def _spread(steps: int, count: int) -> list[int]:
    """``count`` steps from the first to the last."""
    return [number * (steps - 1) // max(count - 1, 1) for number in range(count)]


def _anonymous_mib() -> float:
    """Memory of this process that is not a file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def write_json(path: Path, results: Sequence[CellResult]) -> None:
    """Writes one object per cell."""
    path.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")


def write_csv(path: Path, results: Sequence[CellResult]) -> None:
    """Writes one line per cell and contestant."""
    rows = []
    for result in results:
        cell = {name: value for name, value in asdict(result).items() if name != "imbalance"}
        rows += [
            {**cell, "contestant": name, "imbalance": value}
            for name, value in result.imbalance.items()
        ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def plot(path: Path, results: Sequence[CellResult]) -> None:
    """Draws the part of the ranks' time that is spent waiting, by contestant and cell."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 4), layout="constrained")
    places = np.arange(len(results))
    width = 0.9 / len(CONTESTANTS)
    for number, contestant in enumerate(CONTESTANTS):
        idle = [100 * (1 - 1 / result.imbalance[contestant]) for result in results]
        axes.bar(places + number * width, idle, width, label=contestant)
    least = [100 * (1 - 1 / result.floor) for result in results]
    middle = places + width * (len(CONTESTANTS) - 1) / 2
    axes.plot(middle, least, "k_", markersize=14, label="floor")
    names = [f"{r.lengths}\n{r.ranks} × {r.samples_per_rank}" for r in results]
    axes.set_xticks(middle, names, fontsize=6.5)
    axes.set_ylabel("ranks' time spent waiting, %")
    axes.legend(fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="+", choices=list(LENGTH_SETS), default=LENGTH_SETS)
    parser.add_argument("--ranks", type=integers, default="2,8,64,256")
    parser.add_argument("--samples-per-rank", type=integers, default="32,128,1024")
    parser.add_argument("--rounds", type=int, default=20, help="global batches of each cell")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path, help="SVG or PNG; needs matplotlib")
    parser.add_argument("--billion", action="store_true", help="only that")
    parser.add_argument("--samples", type=int, default=_BILLION, help="for --billion")
    return parser.parse_args()


def main() -> None:
    """Measures and prints."""
    options = parse_arguments()
    if options.billion:
        print(measure_billion(options.samples, _BILLION_ROUNDS))
        return
    results = measure_all(options)
    print(report(results))
    if options.json:
        write_json(options.json, results)
    if options.csv:
        write_csv(options.csv, results)
    if options.plot:
        plot(options.plot, results)


if __name__ == "__main__":
    main()
