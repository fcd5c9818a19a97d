"""Runs the distributed test suites that torch ships against freescale, and beside it gloo.

Fails if a test fails that is not listed in expected_failures.py, if a listed one does not, if too
few tests pass, or if one that passes on gloo is left out.
"""

import argparse
import importlib.metadata
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from conformance.configuration import DEBUG_MODES, SUITES, Configuration
from conformance.expected_failures import (
    EXPECTED_FAILURES,
    FLOORS,
    REFERENCE_SHARE,
    TORCH,
    ExpectedFailure,
)
from conformance.judgement import SuiteRun, compare, judge
from conformance.launch import run_suite

STATUSES = ("passed", "skipped", "failed")


def main() -> int:
    options = parse()
    installed = importlib.metadata.version("torch")
    if not installed.startswith(f"{TORCH}.") and not options.any_torch:
        print(f"skipped: the lists are those of torch {TORCH}, this is {installed}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    runs: list[SuiteRun] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
        for configuration in plan(options):
            folder = Path(directory) / str(configuration).replace(" ", "-").replace(",", "")
            folder.mkdir()
            run = run_suite(configuration, folder, options.only)
            found = check(run, runs, options)
            runs.append(run)
            problems += [f"{configuration}: {problem}" for problem in found]
            print(f"{configuration}: {summary(run)}, {len(found)} problems", flush=True)
    print_table(runs)
    for problem in problems:
        print(f"\nPROBLEM {problem}")
    print(f"\n{len(problems)} problems")
    return 1 if problems else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    add = parser.add_argument
    add("--backend", default="freescale", help="the backend under test")
    add("--compare", default="gloo", metavar="BACKEND", help='the one beside it; "" for none')
    add("--suites", nargs="+", choices=SUITES, default=SUITES)
    add("--ranks", nargs="+", type=int, default=(2, 3))
    add("--debug", nargs="+", choices=DEBUG_MODES, default=DEBUG_MODES)
    add("--only", default="", help="regular expression that the names of tests must contain")
    add("--short", action="store_true", help="two ranks, plain, without comparison")
    add("--any-torch", action="store_true", help=f"go on with a torch that is not {TORCH}")
    options = parser.parse_args()
    if options.short:
        options.ranks, options.debug, options.compare = [2], ["plain"], ""
    return options


def plan(options: argparse.Namespace) -> list[Configuration]:
    """Returns what to run; each reference right after what it is compared with."""
    backends = [options.backend, *filter(None, [options.compare])]
    return [
        Configuration(suite, backend, ranks, debug)
        for debug in options.debug
        for ranks in options.ranks
        for suite in options.suites
        for backend in backends
    ]


def check(run: SuiteRun, earlier: Sequence[SuiteRun], options: argparse.Namespace) -> list[str]:
    """Returns what is wrong with a run, or if it is a reference, with the run before it."""
    floor = FLOORS.get((run.configuration.suite, run.configuration.ranks), 1)
    if run.configuration.backend == options.backend:
        return judge(run, listed_for(run), floor, partial=bool(options.only))
    return compare(earlier[-1], run, 0 if options.only else round(floor * REFERENCE_SHARE))


def listed_for(run: SuiteRun) -> list[ExpectedFailure]:
    """Returns the failures that are expected of a run; the list is freescale's."""
    if run.configuration.backend != "freescale":
        return []
    return [entry for entry in EXPECTED_FAILURES if entry.applies(run.configuration)]


def print_table(runs: Sequence[SuiteRun]) -> None:
    """Prints the counts of all runs as a Markdown table."""
    heads = ["suite", "ranks", "debug", "backend", *STATUSES, "of these listed", "seconds"]
    print(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for run in runs:
        configuration = run.configuration
        what = [configuration.suite, configuration.ranks, configuration.debug]
        counts = [len(run.names(status)) for status in STATUSES]
        listed = run.names("failed") & {entry.test for entry in listed_for(run)}
        cells = [*what, configuration.backend, *counts, len(listed), round(run.seconds)]
        print(f"| {' | '.join(map(str, cells))} |")


def summary(run: SuiteRun) -> str:
    """Returns the counts of one run as a sentence."""
    counts = ", ".join(f"{len(run.names(status))} {status}" for status in STATUSES)
    return f"{counts} in {run.seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
