"""The benchmark of the overlapped exchange: a small run from end to end."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(*arguments: str) -> list[dict[str, str]]:
    small = ("--ranks", "2", "--ids", "1024", "--dim", "16", "--rounds", "1", "--rate", "2e6")
    command = [sys.executable, str(BENCHMARKS / "overlap.py"), *small, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()]
    header, _, *cells = [row for row in rows if row]
    return [dict(zip(header, row, strict=True)) for row in cells]


def test_small_run_reports_every_schedule() -> None:
    rows = run("--shared", "0.1,0.5", "--backends", "freescale")
    assert [(row["schedule"], row["shared %"]) for row in rows] == [
        (f"freescale, {schedule}", shared)
        for shared in ("10", "50")
        for schedule in ("blocking", "FIFO", "prioritised")
    ]
    for row in rows:
        # A sleep is never too short: 1.2 times 512 ids of 132 bytes at 2 MB/s.
        assert float(row["computing ms"]) >= 40.0
        assert float(row["exposed ms"]) > 0
        assert (row["urgent ms"] == "–") == ("prioritised" not in row["schedule"])
    assert "less by ≥ 0.9" in rows[2]["targets"]
    # The link bounds the blocking schedule: 512 rows of 64 bytes, both ways.
    assert float(rows[0]["exposed ms"]) + float(rows[0]["rest ms"]) >= 30.0


def test_timeline_is_drawn(tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    path = tmp_path / "timeline.svg"
    run("--shared", "0.1", "--backends", "freescale", "--plot", str(path))
    assert "BACKGROUND" in path.read_text()
