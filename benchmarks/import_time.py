"""What the package's entry point adds to ``import torch``.

    python benchmarks/import_time.py --runs 15

Fresh interpreters import torch in turns with the entry point visible and hidden. Two figures are
printed. The difference of the median import times is what a user notices, but an import takes over
a second and varies by more than the few milliseconds that the entry point may cost. So the time
inside the entry point itself, loading and calling it, is taken as well in the same runs, and that
one is held against the target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass

from freescale_pg.bench.table import markdown
from targets import IMPORT_MS_AT_MOST

_PACKAGE = "freescale_pg"
_LIMIT_SECONDS = 120

# Runs in the fresh interpreter. Both variants take the same path through the wrapped functions and
# differ only in whether entry points of the package are listed.
_CHILD = """
import importlib.metadata as metadata, json, sys, time
package, hidden = sys.argv[1], sys.argv[2] == "hidden"
inside = 0.0
found = False
list_all, load = metadata.entry_points, metadata.EntryPoint.load

def ours(point):
    return point.value.partition(":")[0].partition(".")[0] == package

def entry_points(**selection):
    return [point for point in list_all(**selection) if not (hidden and ours(point))]

def timed(function):
    def run(*arguments):
        global inside
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            inside += time.perf_counter() - start
    return run

def timed_load(point):
    global found
    if not ours(point):
        return load(point)
    found = True
    return timed(timed(load)(point))

metadata.entry_points, metadata.EntryPoint.load = entry_points, timed_load
start = time.perf_counter()
import torch
print(json.dumps({"total": time.perf_counter() - start, "inside": inside, "found": found}))
"""


@dataclass(frozen=True)
class ImportTime:
    """One import.

    Attributes:
        total: seconds of ``import torch``.
        inside: seconds of them in the package's entry point.
        found: whether torch loaded the entry point.
    """

    total: float
    inside: float
    found: bool


def time_import(hidden: bool, package: str = _PACKAGE) -> ImportTime:
    """Imports torch in a fresh interpreter.

    Args:
        hidden: hide the package's entry points from torch.
        package: top-level package whose entry points are meant.
    """
    command = [sys.executable, "-c", _CHILD, package, "hidden" if hidden else "visible"]
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=_LIMIT_SECONDS
    ).stdout
    return ImportTime(**json.loads(output))


def main() -> None:
    """Runs the interpreters and prints the findings."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15, help="interpreters of each kind")
    runs = parser.parse_args().runs
    if not time_import(hidden=False).found:
        raise SystemExit(f"torch loads no entry point of {_PACKAGE}: is it installed?")
    pairs = [(time_import(hidden=False), time_import(hidden=True)) for _ in range(runs)]
    print(report([visible for visible, _ in pairs], [hidden for _, hidden in pairs]))


def report(visible: list[ImportTime], hidden: list[ImportTime]) -> str:
    """The findings as a Markdown table in milliseconds."""
    rows = [
        ["import torch, entry point visible", *_quartiles([run.total for run in visible])],
        ["import torch, entry point hidden", *_quartiles([run.total for run in hidden])],
        ["inside the entry point", *_quartiles([run.inside for run in visible])],
    ]
    difference = statistics.median(run.total for run in visible) - statistics.median(
        run.total for run in hidden
    )
    inside = statistics.median(run.inside for run in visible) * 1e3
    word = "met" if inside <= IMPORT_MS_AT_MOST else "MISSED"
    table = markdown(["ms", "median", "quartile 1", "quartile 3"], rows)
    verdict = f"{word}: {inside:.2f} ms inside the entry point ≤ {IMPORT_MS_AT_MOST:g} ms"
    return f"{table}\n\ndifference of medians {difference * 1e3:+.1f} ms\n{verdict}"


def _quartiles(seconds: list[float]) -> list[str]:
    first, median, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return [f"{value * 1e3:.2f}" for value in (median, first, third)]


if __name__ == "__main__":
    main()
