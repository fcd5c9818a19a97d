"""``freescale bench``: small runs of each mode, what they write, and what is refused."""

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from freescale_pg.bench import launch
from freescale_pg.bench.cells import OPS
from freescale_pg.bench.launch import find_mpirun
from freescale_pg.cli.bench import spell_out
from freescale_pg.cli.main import main
from harness.interpreters import without_launcher

RUN_LIMIT = 100.0  # seconds; a run below takes 5 to 10 s on an idle machine
BENCH = [sys.executable, "-m", "freescale_pg.cli", "bench"]
TORCHRUN = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"),
    *("--nproc-per-node=2", "-m", "freescale_pg.cli", "bench"),
]
QUICK = ("--sizes", "64B,4KiB", "--seconds", "0.01")


def bench(
    *arguments: str, command: list[str] = BENCH, status: int = 0
) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT,
        env=without_launcher(os.environ),
        check=False,
    )
    assert finished.returncode == status, finished.stderr
    return finished


def rows_of(output: str) -> list[dict[str, str]]:
    """The lines of the first table."""
    lines = [line for line in output.splitlines() if line.startswith("|")]
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def read(path: Path, mode: str) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())
    assert found["mode"] == mode
    assert found["machine"]["torch"]
    results: list[dict[str, Any]] = found["results"]
    return results


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


# --- Collectives ----------------------------------------------------------------------------------


def check_collectives(found: list[dict[str, Any]], names: set[str]) -> None:
    assert [(row["op"], row["size"]) for row in found] == [
        (op, s) for op in OPS for s in (64, 4096)
    ]
    for row in found:
        assert row["failures"] == {}
        assert set(row["timings"]) == names
        for timing in row["timings"].values():
            assert 0 < timing["quartile1_us"] <= timing["median_us"] <= timing["quartile3_us"]


def test_collectives_run_and_report(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.json", tmp_path / "out.csv"
    names = ["freescale", "gloo", "floor", "limit"]
    ours = bench(*("--backends", ",".join(names), *QUICK, "--json", str(path), "--csv", str(lines)))
    check_collectives(read(path, "collectives"), set(names))
    rows = rows_of(ours.stdout)
    assert [(row["op"], row["size"]) for row in rows] == [
        (op, size) for op in OPS for size in ("64 B", "4 KiB")
    ]
    assert all(float(row["vs gloo"]) > 0 for row in rows)
    flat = lines_of(lines)
    assert [line["contestant"] for line in flat] == names * 2 * len(OPS)
    assert all(float(line["median_us"]) > 0 for line in flat)
    assert ours.stderr.count("2 ranks, all_reduce") == 2


def test_collectives_run_on_the_ranks_of_torchrun(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = ("collectives", "--backends", "gloo,limit", *QUICK, "--json", str(path))
    done = bench(*arguments, command=TORCHRUN)
    check_collectives(read(path, "collectives"), {"gloo", "limit"})
    assert done.stdout.count("2 ranks; median") == 1


def test_a_job_has_the_ranks_that_it_has() -> None:
    done = bench("--ranks", "4", *QUICK, command=TORCHRUN, status=1)
    assert "freescale: --ranks 4: the job has 2 ranks" in done.stderr


def test_a_wrong_contestant_is_named(tmp_path: Path) -> None:
    """torch's fake backend, which exchanges nothing; the floor has it registered."""
    path = tmp_path / "out.json"
    done = bench(
        *("--backends", "gloo,floor,fake", "--ops", "all_reduce", *QUICK, "--json", str(path)),
        status=1,
    )
    assert "FAILED fake, all_reduce 4 KiB, 2 ranks: rank 0: wrong result" in done.stdout
    assert [row["fake"] for row in rows_of(done.stdout)] == ["FAILED"] * 2
    for row in read(path, "collectives"):
        assert row["failures"] == {"fake": "rank 0: wrong result"}
        assert set(row["timings"]) == {"gloo", "floor"}


def test_one_run_for_each_world_size() -> None:
    arguments = ("--ranks", "1,3", "--ops", "all_reduce", "--backends", "gloo", *QUICK)
    output = bench(*arguments).stdout
    assert output.index("1 ranks; median") < output.index("3 ranks; median")


@pytest.mark.skipif(find_mpirun() is None, reason="needs benchmarks/requirements.txt")
def test_collectives_run_beside_mpi(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    bench("--backends", "gloo,mpi,limit", *QUICK, "--json", str(path))
    check_collectives(read(path, "collectives"), {"gloo", "mpi", "limit"})


# --- Priority and overlap -------------------------------------------------------------------------


@pytest.mark.freescale_only
def test_priority_runs_and_reports(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.json", tmp_path / "out.csv"
    small = ("--urgent", "4KiB", "--bulk", "32MiB", "--trials", "2")
    output = bench("priority", *small, "--json", str(path), "--csv", str(lines)).stdout
    assert output.startswith("urgent 4 KiB at 200/s beside bulk 32 MiB, 2 ranks; medians")
    found = read(path, "priority")
    assert [row["backend"] for row in rows_of(output)] == ["freescale", "gloo"]
    assert [row["backend"] for row in found] == [row["backend"] for row in lines_of(lines)]
    for row in found:
        assert row["urgent_idle_us"] > 0 and row["bulk_alone_ms"] > 0
        assert row["calls_beside"] + row["calls_missed"] >= 2
        assert (row["ratio"] is None) == (row["calls_beside"] == 0)


def run_overlap(*arguments: str) -> str:
    small = ("--ranks", "2", "--ids", "1024", "--dim", "16", "--rounds", "1", "--rate", "2e6")
    return bench("overlap", *small, "--backends", "freescale", *arguments).stdout


@pytest.mark.freescale_only
def test_overlap_reports_every_schedule(tmp_path: Path) -> None:
    path, lines = tmp_path / "out.json", tmp_path / "out.csv"
    rows = rows_of(run_overlap("--shared", "0.1,0.5", "--json", str(path), "--csv", str(lines)))
    assert [(row["schedule"], row["shared %"]) for row in rows] == [
        (f"freescale, {schedule}", shared)
        for shared in ("10", "50")
        for schedule in ("blocking", "FIFO", "prioritised")
    ]
    for row in rows:
        # A sleep is never too short: 1.2 times 512 ids of 132 bytes at 2 MB/s.
        assert float(row["computing ms"]) >= 40.0
        assert (row["urgent ms"] == "–") == ("prioritised" not in row["schedule"])
    # The link bounds the blocking schedule: 512 rows of 64 bytes, both ways.
    assert float(rows[0]["exposed ms"]) + float(rows[0]["rest ms"]) >= 30.0
    found = read(path, "overlap")
    assert [row["schedule"] for row in found] == [row["schedule"] for row in lines_of(lines)]
    # All of it may be hidden: too little for the table's one decimal.
    assert all(row["exposed_ms"] > 0 for row in found)
    assert found[0]["less_by"] == 0


@pytest.mark.freescale_only
def test_timeline_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "timeline.svg"
    if importlib.util.find_spec("matplotlib") is None:
        refused = bench("overlap", "--plot", str(path), status=1)
        assert "--plot needs matplotlib" in refused.stderr
        pytest.skip("matplotlib is not installed")
    run_overlap("--shared", "0.1", "--plot", str(path))
    assert "BACKGROUND" in path.read_text()


# --- What is refused, and what is left ------------------------------------------------------------


def test_the_mode_is_collectives_where_none_is_given() -> None:
    assert spell_out([]) == ["collectives"]
    assert spell_out(["--ops", "priority"]) == ["collectives", "--ops", "priority"]
    assert spell_out(["priority", "--json", "x"]) == ["priority", "--json", "x"]
    assert spell_out(["--help"]) == ["--help"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("races",), "invalid choice: 'races' (choose from"),
        (("--ops", "all_reduce,sum"), "'sum' is not one of all_to_all_single, "),
        (("--sizes", "4KB"), "size '4KB' is not a whole number from 1 on, with a unit of B, KiB"),
        (("--sizes", "0"), "size '0' is not a whole number from 1 on"),
        (("--ranks", "2,0"), "'0' is not a whole number from 1 on"),
        (("--seconds", "-1"), "'-1' is not a number above 0"),
        (("--seconds", "nan"), "'nan' is not a number above 0"),
        (("--device", "tpu"), "invalid choice: 'tpu' (choose from"),
        (("priority", "--bulk", "big"), "size 'big' is not a whole number"),
        (("priority", "--sizes", "64"), "unrecognized arguments: --sizes 64"),
        (("overlap", "--shared", "0.1,1.5"), "'1.5' is not a number from 0 to 1"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", *arguments])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["collectives", "priority", "overlap"])
def test_unknown_backends_are_refused(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", mode, "--backends", "gloo,glow"]) == 1
    assert "freescale: backend 'glow' is not one of freescale, " in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["collectives", "priority", "overlap"])
def test_a_device_that_is_not_there_is_refused(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert main(["bench", mode, "--device", "cuda"]) == 1
    assert "--device cuda: torch" in capsys.readouterr().err


def test_other_backends_have_no_links_in_a_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    assert main(["bench", "overlap", "--backends", "gloo"]) == 1
    assert "--backends gloo: in a job only freescale has links" in capsys.readouterr().err
    assert main(["bench", "priority", "--ranks", "3"]) == 1
    assert "--ranks 3: the job has 2 ranks" in capsys.readouterr().err


def test_help_and_bad_options_do_not_wait_for_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from freescale_pg.cli.main import main\n"
        "main(['bench', *sys.argv[1:]])"
    )
    told = bench("collectives", "--help", command=[sys.executable, "-c", code])
    assert "*limit* is a copy of those bytes" in told.stdout
    bench("--ops", "sum", command=[sys.executable, "-c", code], status=2)


def children_of(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listed.read_text().split()]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interrupted(number: signal.Signals, folder: Path) -> tuple[int, list[int]]:
    """Ends a run by a signal as soon as it measures; returns its status and its former ranks."""
    environment: Mapping[str, str] = {**without_launcher(os.environ), "TMPDIR": str(folder)}
    command = [*BENCH, "--backends", "gloo", "--sizes", "64B,4KiB", "--seconds", "30"]
    run = subprocess.Popen(
        [*command, "--ops", "all_reduce,broadcast"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + RUN_LIMIT
        while len(ranks := children_of(run.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(ranks) == 2
        run.send_signal(number)
        run.communicate(timeout=30)
        return run.returncode, ranks
    finally:
        run.kill()
        run.communicate()


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)]
)
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    ended, ranks = interrupted(number, tmp_path)
    assert ended == status
    assert not [rank for rank in ranks if is_alive(rank)]
    assert not list(tmp_path.iterdir())


def test_a_signal_while_a_process_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(launch.subprocess, "Popen", Interrupted)
    sleepers = [launch.Command(["sleep", "1000"], {})] * 2
    with pytest.raises(SystemExit), launch.started_together(sleepers):
        pytest.fail("the signal was lost")
    assert len(started) == 2
    assert not [process for process in started if is_alive(process)]


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    ended, ranks = interrupted(signal.SIGKILL, tmp_path)
    assert ended == -signal.SIGKILL
    # The kernel ends them, or they find it out when they have loaded torch.
    deadline = time.monotonic() + RUN_LIMIT
    while any(is_alive(rank) for rank in ranks):
        assert time.monotonic() < deadline
        time.sleep(0.1)
