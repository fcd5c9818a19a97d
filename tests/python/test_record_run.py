"""What fs.record_run() leaves, on real ranks."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

import freescale_pg as fs
from freescale_pg.balance import OnlineStats, Quadratic
from freescale_pg.cli.main import main
from freescale_pg.observe import StepTime, clocks
from freescale_pg.observe import recorder as recorder_module
from freescale_pg.observe.report import step_fields, step_from_fields
from freescale_pg.observe.run_files import read_json, summary_path
from freescale_pg.report.reading import read_run
from freescale_pg.report.traffic import traffic_of
from harness.late import call_last
from harness.launch import Launcher
from report_runs import check_lanes

LARGE = 200_000  # elements; far more than travels with a header
EPOCHS = 2
LENGTHS = [1, 9, 2, 8, 3, 7, 40, 5]
STEPS = EPOCHS * len(LENGTHS) // 4


def exchange(count: int, priority: fs.Priority) -> None:
    given = torch.ones(count * dist.get_world_size())
    fs.all_to_all_single(torch.empty_like(given), given, priority=priority)


def train(rank: int, size: int, directory: str) -> None:
    sampler = fs.BalancedBatchSampler(LENGTHS, 2, cost_model=Quadratic(1, 0.5))
    loader = DataLoader(torch.tensor(LENGTHS), batch_sampler=sampler)
    fs.reset_stats()
    with fs.record_run(directory, sampler=sampler) as recorder:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for number, _ in enumerate(recorder.loader(loader)):
                with recorder.step():
                    exchange(LARGE, fs.Priority.LOW)
                    tag = f"reduce{epoch}.{number}"
                    call_last(rank, size, "all_reduce", lambda: dist.all_reduce(torch.ones(9)), tag)
    dist.barrier()  # nobody looks any more


@pytest.mark.freescale_only
def test_a_training(launch: Launcher, tmp_path: Path) -> None:
    launch(train, 2, str(tmp_path / "run"))
    run = read_run(tmp_path / "run")
    assert run.missing == () and run.size == 2 and list(run.ranks) == [0, 1]
    assert sorted(path.name for path in run.directory.iterdir()) == [
        "rank0.json", "rank0.trace.json.gz", "rank1.json", "rank1.trace.json.gz",
    ]  # fmt: skip
    for rank in run.ranks.values():
        assert [step.time.number for step in rank.steps] == list(range(STEPS))
        assert len(rank.loads) == STEPS
        ends = [0, *(step.end for step in rank.steps)]
        for step, (begin, end), before in zip(rank.steps, rank.loads.tolist(), ends, strict=False):
            assert before <= begin <= end <= step.begin < step.end
        assert {link.transport for link in rank.links if link.peer != rank.rank} == {"shm"}
        (reductions,) = [row for row in rank.operations if row.op == "all_reduce"]
        assert reductions.calls == STEPS
        assert rank.trace is not None and not any(call.op == "barrier" for call in rank.trace.calls)
    check_balance(run.balance)
    assert run.workload is not None and run.workload.samples_per_rank == 2
    assert run.workload.lengths.tolist() == sorted(LENGTHS)
    assert (run.workload.token_cost, run.workload.pair_cost) == (1, 0.5)
    for link in traffic_of(run):
        assert link.transport == "shm" and link.bytes >= STEPS * 4 * LARGE
    # Rank 1 called last, so it is rank 0 that waited for it.
    first, last = ([step.time for step in rank.steps] for rank in run.ranks.values())
    waited = [
        sum(b.stragglers_ns for step in steps for b in step.blocked if b.op == "all_reduce")
        for steps in (first, last)
    ]
    assert waited[0] > 0 and waited[1] == 0
    check_lanes(run)
    check_page(run.directory)


def check_balance(balance: Any) -> None:
    assert [epoch.epoch for epoch in balance] == list(range(EPOCHS))
    for epoch in balance:
        assert epoch.steps == STEPS // EPOCHS and 1 <= epoch.floor <= epoch.after <= epoch.before
    assert not len(balance[0].batches) and balance[1].batches.shape == (STEPS // EPOCHS, 3)


def check_page(directory: Path) -> None:
    assert main(["report", str(directory)]) == 0
    page = (directory / "report.html").read_text()
    assert "Not all is here" not in page and "Not simulated" not in page
    for text in ("all_reduce", "all_to_all_single", "0 → 1", "LOW", "shm", "4,096"):
        assert text in page, text


# --- Streams that are balanced --------------------------------------------------------------------

BATCHES = 3


def train_balanced(rank: int, size: int, directory: str) -> OnlineStats:
    """Every sample of rank 0 costs 9, and of the others 1."""
    balancer = fs.OnlineBalancer(None, lambda batch: batch.double().numpy())
    batches = [torch.full((4,), 1 if rank else 9)] * BATCHES
    with fs.record_run(directory, balancer=balancer) as recorder:
        for balanced in recorder.loader(balancer.balance(batches)):
            with recorder.step():
                exchange(len(balanced.batch), fs.Priority.LOW)
    return balancer.stats()


@pytest.mark.freescale_only
def test_a_balanced_stream(launch: Launcher, tmp_path: Path) -> None:
    stats, _ = launch(train_balanced, 2, str(tmp_path / "run"))
    run = read_run(tmp_path / "run")
    assert run.missing == () and run.balance == () and run.online is not None
    # Loads of 36 and 4 are made equal by two samples that move each way.
    assert (stats.before, stats.after) == (1.8, 1.0)
    found = run.online.imbalance
    assert (found.steps, found.before, found.after, found.floor) == (BATCHES, 1.8, 1.0, 1.0)
    assert (run.online.skipped, run.online.samples) == (0, 8 * BATCHES)
    assert run.online.samples_moved == 4 * BATCHES == stats.samples_moved
    assert run.online.bytes_moved == 8 * 4 * BATCHES == stats.bytes_moved
    assert found.batches.tolist() == [[1.8, 1.0, 1.0]] * BATCHES
    assert all(len(rank.steps) == len(rank.loads) == BATCHES for rank in run.ranks.values())
    assert main(["report", str(run.directory)]) == 0
    page = (run.directory / "report.html").read_text()
    assert f"last {BATCHES} of {BATCHES} batches, balanced online" in page


# --- Jobs that fail -------------------------------------------------------------------------------


def fail(rank: int, size: int, directory: str) -> None:
    with pytest.raises(KeyError, match="broken"), fs.record_run(directory) as recorder:
        with recorder.step():
            dist.barrier()
        with recorder.step():
            raise KeyError("broken")


@pytest.mark.freescale_only
def test_an_error_leaves_files(launch: Launcher, tmp_path: Path) -> None:
    launch(fail, 2, str(tmp_path))
    run = read_run(tmp_path)
    assert run.missing == tuple(f"rank {rank} failed: KeyError: 'broken'" for rank in range(2))
    assert all(len(rank.steps) == 1 and rank.trace for rank in run.ranks.values())


def die(rank: int, size: int, directory: str) -> None:
    with pytest.raises(RuntimeError), fs.record_run(directory) as recorder:
        for number in range(3):
            with recorder.step():
                if (rank, number) == (1, 2):
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.barrier()
            if number == 0:
                recorder.save()
        pytest.fail("rank 1 did not die")


@pytest.mark.freescale_only
def test_a_killed_rank_leaves_what_it_saved(launch: Launcher, tmp_path: Path) -> None:
    launch(die, 2, str(tmp_path), dies=[1])
    run = read_run(tmp_path)
    assert [len(rank.steps) for rank in run.ranks.values()] == [2, 1]
    assert run.ranks[1].state == "running" and run.ranks[1].trace is None
    assert run.missing[0].startswith("rank 0 failed: ")
    assert run.missing[1].startswith("rank 1 did not end its recording")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def refuse(rank: int, size: int, directory: str) -> None:
    """The file of another run is seen by rank 1 alone, whose host it may be."""
    own = Path(directory) / str(rank)
    own.mkdir()
    if rank == 1:
        summary_path(own, 5).touch()
    with pytest.raises(FileExistsError, match=r"rank 1: .*rank5.json is of another run"):  # noqa: SIM117
        with fs.record_run(own):
            pytest.fail("it began")
    assert rank == 1 or not list(own.iterdir())
    occupied = Path(directory) / f"file{rank}"
    occupied.touch()
    place = occupied / "run" if rank == 1 else own / "run"
    with pytest.raises(OSError, match=r"rank 1: .*Not a directory"), fs.record_run(place):
        pytest.fail("it began")
    dist.barrier()


@pytest.mark.freescale_only
def test_all_ranks_refuse_what_one_cannot_use(launch: Launcher, tmp_path: Path) -> None:
    launch(refuse, 2, str(tmp_path))


def end_without(rank: int, size: int, directory: str, failing: int) -> None:
    """The rank that fails lives on, and is elsewhere: the others have no use in waiting for it."""
    with suppress(KeyError), fs.record_run(directory) as recorder:
        with recorder.step():
            dist.barrier()
        if rank == failing:
            raise KeyError("broken")
    dist.barrier()


@pytest.mark.parametrize("over", ["freescale", "gloo"])
@pytest.mark.parametrize("failing", [0, 1])
def test_nobody_waits_for_a_failed_rank(
    launch: Launcher, tmp_path: Path, failing: int, over: str
) -> None:
    launch(end_without, 3, str(tmp_path), failing, backend=over)
    run = read_run(tmp_path)
    assert run.missing == (f"rank {failing} failed: KeyError: 'broken'",)
    # The clocks were compared only once.
    assert all(clock_of(tmp_path, rank)["drift_ppm"] is None for rank in range(3))


def end_after_death(rank: int, size: int, directory: str) -> None:
    with fs.record_run(directory):
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.freescale_only
def test_a_rank_that_dies_behind_the_last_step(launch: Launcher, tmp_path: Path) -> None:
    launch(end_after_death, 3, str(tmp_path), dies=[1])
    assert [read_json(summary_path(tmp_path, rank))["state"] for rank in range(3)] == [
        "finished", "running", "finished",
    ]  # fmt: skip


# --- Clocks that drift ----------------------------------------------------------------------------

AHEAD = 5_000_000_000


def clock_of(directory: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = read_json(summary_path(directory, rank))["clock"]
    return found


class QuickClock:
    """In the place of ``time``: what is ahead, and goes twice as fast."""

    def __init__(self) -> None:
        self._begin = time.monotonic_ns()
        self.time = time.time

    def monotonic_ns(self) -> int:
        return 2 * time.monotonic_ns() - self._begin + AHEAD


def step_by_another_clock(rank: int, size: int, directory: str) -> None:
    if rank == 1:
        recorder_module.time = clocks.time = QuickClock()  # type: ignore[attr-defined]
    with fs.record_run(directory) as recorder:
        for _ in range(20):
            with recorder.step():
                dist.barrier()


@pytest.mark.parametrize("over", ["freescale", "gloo"])
def test_clocks_that_drift(launch: Launcher, tmp_path: Path, over: str) -> None:
    """No rank's step has ended before the other's, which meets it there, began."""
    launch(step_by_another_clock, 2, str(tmp_path), backend=over)
    first, other = (read_json(summary_path(tmp_path, rank))["steps"] for rank in range(2))
    clock = clock_of(tmp_path, 1)
    error = clock["error_ns"]
    for one, two in zip(first, other, strict=True):
        assert one["begin_ns"] <= two["end_ns"] + error
        assert two["begin_ns"] <= one["end_ns"] + error
    assert clock["offset_ns"] >= AHEAD
    # Its own time passes twice, of which half is too much.
    passed = 2 * (first[-1]["begin_ns"] - first[0]["end_ns"])
    assert clock["drift_ppm"] == pytest.approx(500_000, abs=1e6 * 2 * error / passed)
    assert clock_of(tmp_path, 0) == {"offset_ns": 0, "error_ns": 0, "drift_ppm": 0}


# --- Other ways to use it -------------------------------------------------------------------------


def record_other_backend(rank: int, size: int, directory: str) -> None:
    with fs.record_run(directory) as recorder:
        for _ in recorder.steps(range(3)):
            dist.barrier()


def test_another_backend(launch: Launcher, tmp_path: Path) -> None:
    """There are steps, and nothing of what they wait for."""
    launch(record_other_backend, 2, str(tmp_path), backend="gloo")
    run = read_run(tmp_path)
    assert run.missing == () and run.facts["backend"] == "gloo"
    assert [len(rank.steps) for rank in run.ranks.values()] == [3, 3]
    assert all(not rank.links and not rank.operations for rank in run.ranks.values())
    assert main(["report", str(tmp_path)]) == 0
    assert "go over another backend (gloo)" in (tmp_path / "report.html").read_text()


def check_bounds(rank: int, size: int, directory: str) -> None:
    with fs.record_run(directory, keep=2, capacity=3) as recorder:
        for _ in recorder.steps(range(5)):
            pass
        with recorder.step():
            dist.barrier()
            dist.barrier()


@pytest.mark.freescale_only
def test_memory_is_bounded(launch: Launcher, tmp_path: Path) -> None:
    launch(check_bounds, 2, str(tmp_path))
    run = read_run(tmp_path)
    for rank in run.ranks.values():
        assert [step.time.number for step in rank.steps] == [4, 5]
        held = read_json(summary_path(tmp_path, rank.rank))["trace"]
        assert held["events"] == 3 and held["dropped"] > 0
        assert rank.trace is not None and rank.trace.begin > 0


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="capacity must be positive, got 0"):  # noqa: SIM117
        with fs.record_run(tmp_path, capacity=0):
            pass
    with pytest.raises(ValueError, match="there is no process group"), fs.record_run(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_steps_are_what_they_were() -> None:
    blocked = (fs.observe.Blocked("broadcast", None, 1, 2), fs.observe.Blocked("x", "LOW", 3, 4))
    step = StepTime(7, 110, 50, 40, 10, blocked)
    assert step_from_fields(step_fields(step)) == step


def test_workload_of_many_lengths() -> None:
    """Few quantiles have the same mean as many lengths."""
    lengths = torch.arange(100_000).remainder(1009).numpy()
    sampler = fs.BalancedBatchSampler(lengths, 8, num_replicas=4, rank=0)
    workload = sampler.workload()
    assert workload.samples_per_rank == 8 and len(workload.lengths) == 4096
    assert workload.lengths.mean() == pytest.approx(lengths.mean(), rel=1e-3)
    assert (workload.lengths[0], workload.lengths[-1]) == (0, 1008)
