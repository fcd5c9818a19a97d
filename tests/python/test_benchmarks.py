"""The benchmarks: a small run of each from end to end, and the parts that decide what is shown."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from bench.cells import OPS, Cell, Workload
from bench.launch import command_line, find_mpirun
from bench.ranks import Ranks
from bench.results import CellResult, Timing, read_json, write_csv, write_json
from bench.roster import choose_contestants
from bench.splits import equal_splits, ragged_splits
from bench.table import markdown, parse_size, size_text
from cell_report import report
from targets import KIB, MIB, Measure, judge

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN_LIMIT = 100.0  # seconds; a run below takes about 10 s on an idle machine


def run_script(name: str, *arguments: str) -> str:
    """Runs a benchmark in a process tree of its own and returns its standard output."""
    # A rank's environment, should the tests run under a launcher, would make the script a rank.
    launcher = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
    environment = {name: value for name, value in os.environ.items() if name not in launcher}
    finished = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
        env=environment,
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


# --- Splits and layouts ---------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("count", [0, 1, 16, 1021, 1 << 20])
def test_ragged_splits_keep_the_total_and_favour_low_ranks(count: int, world_size: int) -> None:
    splits = ragged_splits(count, world_size)
    assert len(splits) == world_size
    assert sum(splits) == count
    assert min(splits) >= 0
    if count >= 1 << 20 and world_size > 1:
        assert splits == sorted(splits, reverse=True)
        assert splits[0] > 1.3 * splits[-1]


def test_ragged_splits_are_fixed() -> None:
    assert ragged_splits(10, 2) == [6, 4]
    assert ragged_splits(22, 4) == [7, 6, 5, 4]


def test_equal_splits_refuse_a_rest() -> None:
    assert equal_splits(12, 3) == [4, 4, 4]
    with pytest.raises(ValueError, match="13 elements"):
        equal_splits(13, 3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ragged_all_to_all_moves_as_much_as_the_equal_one(world_size: int) -> None:
    equal = Cell("all_to_all_single", 64 * KIB, world_size)
    ragged = Cell("all_to_all_single_ragged", 64 * KIB, world_size)
    assert ragged.total_bytes == equal.total_bytes
    assert ragged.input_bytes == equal.input_bytes
    for rank in range(world_size):
        sent = [ragged.layout(rank).input_splits[peer] for peer in range(world_size)]
        received = [ragged.layout(peer).output_splits[rank] for peer in range(world_size)]
        assert sent == received


def simulate(op: str, rank: int, world_size: int, count: int) -> torch.Tensor:
    """What ``op`` gives ``rank``, worked out from everybody's inputs without the layouts."""
    inputs = [Workload(Cell(op, count * 4, world_size), peer).input for peer in range(world_size)]
    match op:
        case "all_to_all_single":
            return torch.cat([each.chunk(world_size)[rank] for each in inputs])
        case "all_to_all_single_ragged":
            cuts = ragged_splits(count, world_size)
            return torch.cat([each.split(cuts)[rank] for each in inputs])
        case "all_gather_into_tensor":
            return torch.cat(inputs)
        case "all_reduce":
            return torch.stack(inputs).sum(0)
        case "reduce_scatter_tensor":
            return torch.stack(inputs).sum(0).chunk(world_size)[rank]
        case _:
            return inputs[0]


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("op", OPS)
def test_check_accepts_the_right_output_and_no_other(op: str, rank: int) -> None:
    count = 3 * 2048
    workload = Workload(Cell(op, count * 4, 3), rank)
    expected = simulate(op, rank, 3, count)
    workload.poison()
    if workload.layout.parts:
        assert not workload.is_correct()
        workload.output.copy_(expected)
        assert workload.is_correct()
        workload.output[-1] += 1
        assert not workload.is_correct()
    else:
        assert torch.equal(workload.output, expected)


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


# --- Reports and files ----------------------------------------------------------------------------


def test_report_shows_times_speeds_ratios_and_verdicts() -> None:
    text = report([result(size=MIB, freescale=100.0, gloo=500.0, mpi=150.0)])
    row = next(line for line in text.splitlines() if "1 MiB" in line)
    assert "100 (10.5)" in row
    assert [cell.strip() for cell in row.split("|")][6:8] == ["5.00", "1.50"]
    assert "MISSED gloo 5 ≥ 6; met MPI 1.5 ≥ 1" in row
    assert text.endswith("targets: 1 of 2 judged here are met")


def test_report_without_freescale_judges_nothing() -> None:
    text = report([result(gloo=500.0)])
    assert "MISSED" not in text
    assert text.endswith("targets: none of them can be judged by this run")


def test_files_hold_the_results(tmp_path: Path) -> None:
    found = [result(freescale=100.0, gloo=500.0), result(size=64, gloo=200.0)]
    write_json(tmp_path / "out.json", found)
    write_csv(tmp_path / "out.csv", found)
    assert read_json(tmp_path / "out.json") == found
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["size"], row["contestant"], float(row["median_us"])) for row in rows] == [
        (str(MIB), "freescale", 100.0),
        (str(MIB), "gloo", 500.0),
        ("64", "gloo", 200.0),
    ]


def test_markdown_is_aligned() -> None:
    text = markdown(["op", "µs"], [["a", "1000"], ["bcd", "2"]])
    assert text.splitlines() == [
        "| op  |   µs |",
        "| --- | ---: |",
        "| a   | 1000 |",
        "| bcd |    2 |",
    ]


@pytest.mark.parametrize(
    ("text", "size"), [("64", 64), ("64B", 64), ("4KiB", 4096), ("3 MiB", 3 * MIB)]
)
def test_sizes_are_read_and_written(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(size_text(size)) == size


@pytest.mark.parametrize("text", ["", "0", "-4KiB", "4KB", "1.5MiB"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_size(text)


# --- Whole runs -----------------------------------------------------------------------------------


def test_command_lines_name_script_ranks_and_arguments() -> None:
    torchrun = command_line("s.py", ["--x"], 3, None)
    assert torchrun[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert torchrun[-3:] == ["--nproc-per-node=3", "s.py", "--x"]
    mpirun = command_line("s.py", ["--x"], 3, "/bin/mpirun")
    assert mpirun[0] == "/bin/mpirun"
    assert mpirun[-5:] == ["-n", "3", sys.executable, "s.py", "--x"]


def test_collectives_run_and_report(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    output = run_script(
        "collectives.py",
        *("--backends", "gloo,floor,limit", "--sizes", "64B,4KiB", "--min-time", "0.01"),
        *("--json", str(path)),
    )
    found = json.loads(path.read_text())
    assert [(row["op"], row["size"]) for row in found] == [
        (op, s) for op in OPS for s in (64, 4096)
    ]
    for row in found:
        assert set(row["timings"]) == {"gloo", "floor", "limit"}
        assert all(timing["median_us"] > 0 for timing in row["timings"].values())
    assert output.count("\n| all_reduce ") == 2


@pytest.mark.skipif(find_mpirun() is None, reason="needs benchmarks/requirements.txt")
def test_collectives_run_beside_mpi() -> None:
    arguments = ("--backends", "gloo,mpi,limit", "--sizes", "4KiB", "--min-time", "0.01")
    output = run_script("collectives.py", *arguments)
    assert "| mpi |" in " ".join(output.split())
    assert [f"\n| {op} " in output for op in OPS] == [True] * len(OPS)


def test_an_absent_contestant_asked_for_by_name_is_an_error() -> None:
    without_mpi = Ranks(rank=0, world_size=1, mpi=None)
    assert "mpi" not in choose_contestants(None, without_mpi)
    assert choose_contestants(["gloo"], without_mpi) == ["gloo"]
    with pytest.raises(SystemExit, match="cannot measure mpi: not started by mpirun"):
        choose_contestants(["mpi"], without_mpi)


def test_priority_runs_on_gloo() -> None:
    arguments = ("--backends", "gloo", "--urgent", "4KiB", "--bulk", "8MiB", "--trials", "2")
    last = run_script("priority.py", *arguments).splitlines()[-1]
    cells = [cell.strip() for cell in last.split("|")[1:-1]]
    assert cells[0] == "gloo"
    assert float(cells[1]) > 0
    assert float(cells[4]) > 0
    assert cells[-1] == "–"


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
    assert float(rows[2][4]) > 0 and "0.5 %" in rows[2][6]
