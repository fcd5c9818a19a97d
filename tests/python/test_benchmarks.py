"""The benchmarks of this project alone: the aims, and a small run of each script."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from freescale_pg.bench.cells import Cell
from freescale_pg.bench.collectives import CollectivesMode
from freescale_pg.bench.mode import write_json
from freescale_pg.bench.results import CellResult, Timing
from harness.interpreters import without_launcher
from targets import KIB, MIB, Measure, judge
from verdicts import of_collectives, of_overlap, of_priority

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN_LIMIT = 100.0  # seconds; a run below takes about 10 s on an idle machine


def run_script(name: str, *arguments: str) -> str:
    """Runs a benchmark in a process tree of its own and returns its standard output."""
    finished = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
        env=without_launcher(os.environ),
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def result(
    op: str = "all_to_all_single", size: int = MIB, ranks: int = 2, **medians: float
) -> CellResult:
    cell = Cell(op, size, ranks)
    timings = {name: Timing(median, median, median) for name, median in medians.items()}
    return CellResult(op, size, ranks, cell.busiest_bytes, cell.total_bytes, 7, timings)


def records(*results: CellResult) -> list[dict[str, Any]]:
    return [asdict(each) for each in results]


# --- Targets --------------------------------------------------------------------------------------


def verdicts(found: CellResult, baseline: tuple[CellResult, ...] = ()) -> dict[Measure, bool]:
    return {verdict.target.measure: verdict.met for verdict in judge(found, baseline)}


def test_bounds_are_inclusive_on_the_right_side() -> None:
    reached = result(size=MIB, freescale=100.0, gloo=600.0, mpi=100.0, limit=24.0)
    assert verdicts(reached) == {Measure.VERSUS_GLOO: True, Measure.VERSUS_MPI: True}
    short = result(size=MIB, freescale=100.0, gloo=599.0, mpi=99.0, limit=24.0)
    assert verdicts(short) == {Measure.VERSUS_GLOO: False, Measure.VERSUS_MPI: False}


def test_small_messages_have_an_absolute_bound() -> None:
    fast = verdicts(result(size=4 * KIB, freescale=15.0, gloo=200.0))
    slow = verdicts(result(size=4 * KIB, freescale=15.1, gloo=200.0))
    assert fast == {Measure.MEDIAN_US: True, Measure.VERSUS_GLOO: True}
    assert slow == {Measure.MEDIAN_US: False, Measure.VERSUS_GLOO: True}


@pytest.mark.parametrize("op", ["all_to_all_single", "all_to_all_single_ragged"])
def test_large_exchanges_are_held_against_the_limit(op: str) -> None:
    near = result(op, 16 * MIB, freescale=1000.0, gloo=5000.0, mpi=1500.0, limit=800.0)
    far = result(op, 16 * MIB, freescale=1000.0, gloo=5000.0, mpi=1500.0, limit=790.0)
    assert verdicts(near)[Measure.VERSUS_LIMIT]
    assert not verdicts(far)[Measure.VERSUS_LIMIT]


def test_more_ranks_are_held_against_their_cost_at_two() -> None:
    two = result(op="all_reduce", size=4 * KIB, ranks=2, freescale=100.0, gloo=400.0)
    four = result(op="all_reduce", size=4 * KIB, ranks=4, freescale=400.0, gloo=1200.0)
    slower = result(op="all_reduce", size=4 * KIB, ranks=4, freescale=401.0, gloo=1200.0)
    assert verdicts(four, (two,)) == {Measure.VERSUS_GLOO: True, Measure.COST_PER_BYTE: True}
    assert verdicts(slower, (two,)) == {Measure.VERSUS_GLOO: False, Measure.COST_PER_BYTE: False}


def test_absent_contestants_are_not_judged() -> None:
    assert judge(result(gloo=600.0, mpi=100.0, limit=24.0)) == []
    assert verdicts(result(freescale=100.0, mpi=100.0)) == {Measure.VERSUS_MPI: True}
    four = result(ranks=4, freescale=100.0, gloo=400.0)
    assert verdicts(four) == {Measure.VERSUS_GLOO: True}


def test_verdicts_stand_beside_the_cells() -> None:
    text = of_collectives(records(result(size=MIB, freescale=100.0, gloo=500.0, mpi=150.0)))
    row = next(line for line in text.splitlines() if "1 MiB" in line)
    assert "MISSED gloo 5 ≥ 6; met MPI 1.5 ≥ 1" in row
    assert text.endswith("targets: 1 of 2 judged here are met")


def test_run_without_freescale_judges_nothing() -> None:
    text = of_collectives(records(result(gloo=500.0)))
    assert "MISSED" not in text
    assert text.endswith("targets: none of them can be judged by this run")


def test_priorities_are_held_against_their_aims() -> None:
    line = {"backend": "freescale", "ratio": 2.5, "bulk_loss": 0.2}
    text = of_priority([line, {**line, "backend": "gloo", "ratio": 9.0}])
    assert "met 2.5 ≤ 3" in text and "MISSED 0.2 ≤ 0.1" in text
    assert "9" not in text
    assert "not measured" in of_priority([{**line, "ratio": None}])


def test_overlap_is_held_against_its_aims() -> None:
    line = {"backend": "freescale", "schedule": "prioritised", "shared": 0.1, "less_by": 0.85}
    text = of_overlap(
        [line, {**line, "shared": 0.3}, {**line, "shared": 0.5}, {**line, "schedule": "FIFO"}]
    )
    assert [each.split("|")[2].strip() for each in text.splitlines()[2:]] == [
        "MISSED 0.85 ≥ 0.9",
        "met 0.85 ≥ 0.75",
    ]


def test_verdicts_are_read_from_a_file(tmp_path: Path) -> None:
    mode = CollectivesMode(("all_to_all_single",), (MIB,), None, None, "cpu", 1.0)
    path = tmp_path / "out.json"
    write_json(path, mode, records(result(size=MIB, freescale=100.0, gloo=600.0)))
    assert run_script("verdicts.py", str(path)).endswith("targets: 1 of 1 judged here are met\n")


# --- Whole runs -----------------------------------------------------------------------------------


def test_idle_measures_the_wait() -> None:
    output = run_script("idle.py", "--backends", "gloo", "--seconds", "1", "--sizes", "4KiB")
    cells = [cell.strip() for cell in output.splitlines()[-1].split("|")[1:-1]]
    assert cells[:2] == ["gloo", "4 KiB"]
    assert float(cells[2]) >= 0.9
    assert float(cells[3]) < 0.9


@pytest.mark.freescale_only
def test_balanced_training_learns_the_same() -> None:
    output = run_script(
        "balanced_training.py", "--ranks=2", "--epochs=1", "--data=synthetic", "--max-steps=3"
    )
    dealt, balanced = (row.split("|") for row in output.splitlines()[2:4])
    assert [dealt[1].strip(), balanced[1].strip()] == ["dealt in turn", "balanced"]
    assert float(balanced[2]) < float(dealt[2])
    apart = float(output.split("differ by ")[1].split()[0])
    assert apart < 1e-5


@pytest.mark.freescale_only
def test_overhead_of_measuring_is_shown() -> None:
    output = run_script("bubble_overhead.py", "--calls=3", "--compute-ms=1", "--min-time=0.5")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()[2:]]
    assert [row[1] for row in rows] == ["nothing", "nothing, again", "BubbleMeter", "trace"]
    step, added, part = float(rows[0][2]), float(rows[2][4]), float(rows[2][5])
    # A difference of measured times, which on a busy machine may have any sign.
    assert part == pytest.approx(added / 1e3 / step * 100, abs=0.01, rel=0.01)
    assert "0.5 %" in rows[2][6]
