"""The benchmark of the online balancer: a small run from end to end."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_small_run_reports_every_backend_and_count() -> None:
    size = ("--ranks", "2", "--samples-per-rank", "16", "--batches", "8")
    command = [sys.executable, str(BENCHMARKS / "online_balance.py"), *size]
    command += ["--counts", "equal", "uneven"]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    header, _, *cells = [row for row in rows if row]
    contestants = [("freescale", "equal"), ("freescale", "uneven"), ("gloo", "equal")]
    assert [(row[0], row[1]) for row in cells] == [*contestants, ("gloo", "uneven")]
    for row in cells:
        named = dict(zip(header, row, strict=True))
        assert named["W × b"] == "2 × 16"
        assert 1 <= float(named["floor"]) <= float(named["after"]) <= float(named["before"])
        assert float(named["moved %"]) <= float(named["worst %"])
        assert ("≤" in named["targets"]) == (row[0] == "freescale")
    # The same streams, so the same plans.
    planned = slice(header.index("before"), header.index("KiB moved") + 1)
    assert [row[planned] for row in cells[:2]] == [row[planned] for row in cells[2:]]
