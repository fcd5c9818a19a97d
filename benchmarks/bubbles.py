"""Which technique removes how many bubbles, and how that depends on data, model and machine.

    python benchmarks/bubbles.py                   # 256 ranks, 40 steps for each line: 20 seconds
    python benchmarks/bubbles.py --ranks 4096 --steps 20

Each line is a run of ``freescale simulate`` with some options changed. *Baseline* is its bubble,
*gone* what part of it all three techniques remove together, and the last columns are what each adds
to that, in the order in which they are applied.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

from freescale_pg.bench.table import markdown
from freescale_pg.cli import simulate as command
from freescale_pg.simulate.modes import gone, simulate
from targets import BUBBLES_GONE

# What is changed, and the options that change it; the first line changes nothing.
_VARIATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nothing", ()),
    ("tail: Zipf 1.05", ("--zipf-exponent", "1.05")),
    ("tail: Zipf 1.5", ("--zipf-exponent", "1.5")),
    ("tail: lognormal, median 200, σ 0.5", ("--lengths", "lognormal", "--lognormal-sigma", "0.5")),
    ("tail: lognormal, σ 1", ("--lengths", "lognormal")),
    ("tail: lognormal, σ 1, up to 8192", ("--lengths", "lognormal", "--longest-tokens", "8192")),
    (
        "the same, 128 samples per rank",
        ("--lengths", "lognormal", "--longest-tokens", "8192", "--samples-per-rank", "128"),
    ),
    ("8 samples per rank", ("--samples-per-rank", "8")),
    ("128 samples per rank", ("--samples-per-rank", "128")),
    ("no rows shared", ("--shared-percent", "0")),
    ("60 % of the rows shared", ("--shared-percent", "60")),
    ("all rows shared", ("--shared-percent", "100")),
    ("a quarter of the tokens distinct", ("--distinct-percent", "25")),
    ("rows of 512 elements", ("--embedding-dim", "512")),
    ("cards of 100 Gbit/s", ("--nic-gigabits-per-second", "100")),
    (
        "cards of 100 Gbit/s, rows of 512",
        ("--nic-gigabits-per-second", "100", "--embedding-dim", "512"),
    ),
    ("60 % of peak: 593 teraflops", ("--teraflops", "593")),
    (
        "593 teraflops, rows of 512",
        ("--teraflops", "593", "--embedding-dim", "512"),
    ),
    ("slowdown 0 %", ("--slowdown-percent", "0")),
    ("slowdown 40 %", ("--slowdown-percent", "40")),
    ("latency 0 µs", ("--latency-microseconds", "0")),
    ("latency 200 µs", ("--latency-microseconds", "200")),
)
_HEADER = ["changed", "baseline %", "left %", "gone %", "balance", "overlap", "SM-free", "target"]


def line_of(name: str, options: Sequence[str]) -> list[str]:
    """Returns the table's line for a run with these options."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    outcomes = simulate(command.scenario_of(parser.parse_args(list(options))))
    removed = [gone(outcome, outcomes) for outcome in outcomes]
    return [
        name,
        f"{100 * outcomes[0].time.bubble:.1f}",
        f"{100 * outcomes[-1].time.bubble:.2f}",
        f"{100 * removed[-1]:.1f}",
        *(f"{100 * (now - before):.1f}" for before, now in pairwise(removed)),
        f"{'met' if removed[-1] >= BUBBLES_GONE else 'MISSED'} ≥ {100 * BUBBLES_GONE:g}",
    ]


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40, help="of each line")
    return parser.parse_args()


def main() -> None:
    """Simulates and prints."""
    options = parse_arguments()
    usual = ("--ranks", str(options.ranks), "--steps", str(options.steps))
    lines = [line_of(name, (*usual, *changed)) for name, changed in _VARIATIONS]
    print(markdown(_HEADER, lines))


if __name__ == "__main__":
    main()
