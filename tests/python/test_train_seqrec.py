"""The main job, as its users start it."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freescale_pg.cli.main import main
from freescale_pg.report.reading import read_run
from harness.failed_program import STACKS, failure_of
from report_runs import check_lanes

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = str(ROOT / "examples" / "train_seqrec.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
SHORT = ["--data=synthetic", "--epochs=1", "--max-steps=4", "--dim=32", "--batch-size=32"]
LIMIT = 100.0


def start(ranks: int | None, *options: str) -> "subprocess.Popen[str]":
    launcher = [] if ranks is None else [*TORCHRUN, f"--nproc-per-node={ranks}"]
    # Rank variables of an outer launcher would make a plain run wait for peers.
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, *launcher, SCRIPT, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **STACKS, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", limit: float = LIMIT) -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session: torchrun and its ranks.
            process.communicate()
    return process.returncode, output, errors


def train(ranks: int | None, *options: str) -> tuple[dict[str, str], str]:
    status, output, errors = finish(start(ranks, *options))
    assert status == 0, failure_of(output, errors)
    results = re.findall(r"^RESULT (.*)$", output, re.MULTILINE)
    assert len(results) == 1, output
    return dict(word.split("=") for word in results[0].split()), output


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    return train(None, *SHORT, "--backend=gloo")[0]


@pytest.mark.parametrize("backend", ["freescale", "gloo"])
def test_two_ranks_do_what_one_process_does(alone: dict[str, str], backend: str) -> None:
    result, output = train(2, *SHORT, f"--backend={backend}")
    assert result["world_size"] == "2"
    assert result["backend"] == backend
    assert float(result["loss"]) == pytest.approx(float(alone["loss"]), abs=1e-4)
    assert result["pop_ndcg10"] == alone["pop_ndcg10"]
    assert float(result["samples_per_s"]) > 0
    assert ("URGENT" in output) == (backend == "freescale")


def test_overlap_changes_when_rows_travel_and_not_the_training() -> None:
    together, output = train(2, *SHORT)
    apart, _ = train(2, *SHORT, "--no-overlap")
    assert together["loss"] == apart["loss"]
    assert together["ndcg10"] == apart["ndcg10"]
    assert "BACKGROUND" in output


def test_a_recorded_training_makes_a_report(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(2, *SHORT, f"--run-dir={directory}")
    run = read_run(directory)
    assert run.missing == () and [len(rank.steps) for rank in run.ranks.values()] == [4, 4]
    # With overlap, another thread waits, and this one for that: as the meter counts it.
    assert all(rank.trace is not None and rank.trace.joins for rank in run.ranks.values())
    check_lanes(run)
    assert main(["report", str(directory)]) == 0
    page = (directory / "report.html").read_text()
    for text in ("Not all is here", "Not simulated", "No "):
        assert text not in page, text
    for text in ("URGENT", "BACKGROUND", "all_reduce", "1 → 0", "times as balanced"):
        assert text in page, text


def test_balance_changes_who_trains_on_what_and_not_the_training(alone: dict[str, str]) -> None:
    result, output = train(2, *SHORT, "--no-balance")
    assert float(result["loss"]) == pytest.approx(float(alone["loss"]), abs=1e-4)
    found = re.search(r"mean: ([0-9.]+) with .* \(as here\), ([0-9.]+) balanced,", output)
    assert found is not None, output
    dealt, balanced = (float(word) for word in found.groups())
    assert 1 <= balanced < dealt == pytest.approx(float(result["imbalance"]), abs=1e-3)


def test_file_of_interactions(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"u{user},i{(user + step) % 9}" for user in range(8) for step in range(6)]
    path.write_text("\n".join(lines))
    result, output = train(None, f"--data={path}", "--epochs=1", "--backend=gloo")
    assert result["data"] == "log.csv"
    assert "8 users, 9 items, 48 interactions" in output


def test_unreadable_file_ends_with_a_message_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("1 2 3 4\n1 2\n")
    status, _, errors = finish(start(None, f"--data={path}", "--backend=gloo"))
    assert status == 1
    assert "bad.txt:2: expected 4 fields, got 2" in errors
    assert "Traceback" not in errors


def test_a_device_that_is_not_there_is_refused() -> None:
    status, _, errors = finish(start(None, "--data=synthetic", "--device=cuda"))
    assert status == 2
    assert "torch finds no GPU" in errors


def test_no_network_means_a_warning_and_synthetic_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    options = [option for option in SHORT if option != "--data=synthetic"]
    result, output = train(2, *options, f"--cache={tmp_path}", "--backend=gloo")
    assert "WARNING: cannot get MovieLens-100k" in output
    assert result["data"] == "synthetic"
    assert list(tmp_path.iterdir()) == []


def test_interrupt_ends_all_ranks() -> None:
    process = start(2, *SHORT, "--max-steps=1000000", "--epochs=100000", "--backend=gloo")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("epoch"):
            break
    os.killpg(process.pid, signal.SIGINT)
    began = time.monotonic()
    status, _, errors = finish(process, limit=60)
    assert status != 0
    assert time.monotonic() - began < 45
    assert "interrupted" in errors
