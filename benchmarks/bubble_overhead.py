"""What measuring costs the steps that are measured.

    python benchmarks/bubble_overhead.py                       # 2 ranks, 20 calls a step
    python benchmarks/bubble_overhead.py --compute-ms 2,10,50 --calls 50 --min-time 60

A step computes (products of small matrices) and makes some blocking exchanges in between; the ranks
take it together. Steps without anything, with a ``BubbleMeter``, and with the log of ``fs.trace``
open take turns in one run, ten at a time. *ratio* compares the medians, of the slower rank.

On a shared machine the medians of two equal contestants differ by more than what is looked for, as
the line *nothing, again* shows. So what a meter adds is measured where it is added: *added µs* is
the median time that its code takes at the begin and the end of these steps, plus that of noting the
waits. The latter is what as many calls take longer with a log in a group of one rank, where nothing
is computed and nobody is waited for. *added %* is their part of a step, which the target is about.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Mapping
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

import freescale_pg as fs
from freescale_pg import _C
from freescale_pg.bench.arguments import numbers
from freescale_pg.bench.contestants import Call
from freescale_pg.bench.interleave import choose_rounds, interleave
from freescale_pg.bench.ranks import Ranks, agreed
from freescale_pg.bench.script import print_table_of
from freescale_pg.bench.spin_barrier import SpinBarrier
from freescale_pg.bench.table import markdown
from targets import BUBBLE_OVERHEAD_AT_MOST

_ELEMENTS = 16 << 10  # of an exchange: 64 KiB of float32
_WIDTH = 128  # of the matrices
_OWN_ROUNDS = 300
_STEPS = 10  # of a turn
_TRACED = 100_000  # events kept
_METER = "BubbleMeter"
_PLAIN = "nothing"
_HEADER = ["computing", "with", "step ms", "ratio", "added µs", "added %", "target"]


class Exchange:
    """A blocking exchange on a group."""

    def __init__(self, group: dist.ProcessGroup, elements: int) -> None:
        self._group = group
        self._given = torch.ones(elements * group.size())
        self._got = torch.empty_like(self._given)

    def run(self) -> None:
        """Exchanges."""
        dist.all_to_all_single(self._got, self._given, group=self._group)


class Step:
    """A step of a training: exchanges, with computing in between.

    Args:
        exchange: One of them.
        calls: How many.
        products: Of matrices, before each of them.
    """

    def __init__(self, exchange: Exchange, calls: int, products: int) -> None:
        self._exchange, self._calls, self._products = exchange, calls, products
        self._matrix = torch.ones(_WIDTH, _WIDTH)

    def run(self) -> None:
        """Takes the step."""
        for _ in range(self._calls):
            for _ in range(self._products):
                torch.mm(self._matrix, self._matrix)
            self._exchange.run()


class Meter:
    """A meter, and what its own code takes in each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def run(self, step: Call) -> None:
        """Takes steps that a new meter measures."""
        meter = fs.BubbleMeter()
        for _ in range(_STEPS):
            before = time.perf_counter()
            with meter.step():
                begin = time.perf_counter()
                step()
                end = time.perf_counter()
            self.seconds.append(begin - before + time.perf_counter() - end)


def plain(step: Call) -> None:
    """Takes steps that nobody looks at."""
    for _ in range(_STEPS):
        step()


def traced(step: Call) -> None:
    """Takes steps beside the log of a trace."""
    log = _C.TraceLog(_TRACED)
    plain(step)
    log.close()


def noting_seconds(step: Call) -> float:
    """What noting its waits adds to a step that waits for nobody."""

    def noted() -> None:
        with fs.BubbleMeter().step():
            plain(step)

    calls = {_PLAIN: lambda: plain(step), "noted": noted}
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.disable()
    for _ in range(_OWN_ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    gc.enable()
    return (median(times["noted"]) - median(times[_PLAIN])) / _STEPS


def products_for(seconds: float, calls: int) -> int:
    """How many products of matrices before each call take so long; the same on all ranks."""
    matrix = torch.ones(_WIDTH, _WIDTH)
    samples = []
    for _ in range(200):
        start = time.perf_counter()
        torch.mm(matrix, matrix)
        samples.append(time.perf_counter() - start)
    return max(1, round(agreed(seconds / calls / median(samples))))


def measure(options: argparse.Namespace, ranks: Ranks) -> list[list[str]]:
    """Returns the table's rows; a collective call."""
    everyone = dist.new_group(backend="freescale")
    alone = Step(Exchange(_group_of_own(ranks), 1), options.calls, 0)
    noting = noting_seconds(alone.run)
    barrier = SpinBarrier(ranks, yields=ranks.oversubscribed)
    rows = []
    for milliseconds in options.compute_ms:
        products = products_for(milliseconds / 1e3, options.calls)
        step = Step(Exchange(everyone, _ELEMENTS), options.calls, products).run
        meter = Meter()
        calls: dict[str, Call] = {
            _PLAIN: partial(plain, step),
            f"{_PLAIN}, again": partial(plain, step),
            _METER: partial(meter.run, step),
            "trace": partial(traced, step),
        }
        samples = interleave(calls, barrier, choose_rounds(calls, barrier, options.min_time))
        medians = {name: float(times.median()) / _STEPS for name, times in samples.items()}
        added = agreed(median(meter.seconds) + noting)
        rows += [
            _row(f"{milliseconds:g} ms", name, medians, added if name == _METER else None)
            for name in calls
        ]
    return rows


def _group_of_own(ranks: Ranks) -> dist.ProcessGroup:
    groups = [dist.new_group([rank], backend="freescale") for rank in range(ranks.world_size)]
    own = groups[ranks.rank]
    assert isinstance(own, dist.ProcessGroup)
    return own


def _row(computing: str, name: str, medians: Mapping[str, float], added: float | None) -> list[str]:
    row = [computing, name, f"{1e3 * medians[name]:.3f}", f"{medians[name] / medians[_PLAIN]:.4f}"]
    if added is None:
        return [*row, "–", "–", "–"]
    part = added / medians[_PLAIN]
    met = "met" if part <= BUBBLE_OVERHEAD_AT_MOST else "MISSED"
    bound = f"{100 * BUBBLE_OVERHEAD_AT_MOST:g} %"
    return [*row, f"{1e6 * added:.1f}", f"{100 * part:.3f}", f"{met} ≤ {bound}"]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ranks", type=int, default=2)
    add("--calls", type=int, default=20, help="exchanges of 64 KiB to each rank in a step")
    add("--compute-ms", type=numbers, default=[5, 20], help="computing of a step")
    add("--min-time", type=float, default=15.0, help="seconds for each kind of step")
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = parse_arguments()
    print_table_of(
        __file__, options.ranks, lambda ranks: markdown(_HEADER, measure(options, ranks))
    )


if __name__ == "__main__":
    main()
