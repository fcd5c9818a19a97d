"""Where BubbleMeter says that the time of steps went: what is known of it exactly."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import freescale_pg as fs
from freescale_pg import _C
from freescale_pg.embedding.background import Background
from freescale_pg.observe import Blocked, BubbleReport, RankTimes, StepTime
from harness.late import call_last, is_posted
from harness.launch import Launcher
from harness.odd_steps import check_steps_that_do_not_count

LARGE = 2_000_000  # elements: several blocks of a reduction, none of which travels with its header


def check_identity(step: StepTime) -> None:
    parts = (step.compute_ns, step.loader_ns, step.stragglers_ns, step.communication_ns)
    assert all(part >= 0 for part in (*parts, step.idle_ns)), step
    assert sum(parts) == step.total_ns and step.idle_ns == 0, step


# --- On ranks -------------------------------------------------------------------------------------


def exchange(count: int) -> None:
    given = torch.ones(count // dist.get_world_size() * dist.get_world_size())
    dist.all_to_all_single(torch.empty_like(given), given)


CALLS: dict[str, Callable[[int], object]] = {
    "all_reduce": lambda count: dist.all_reduce(torch.ones(count)),
    "all_to_all_single": exchange,
    "barrier": lambda count: dist.barrier(),
    "broadcast": lambda count: dist.broadcast(torch.ones(count), 0),
}


def check_late_rank(rank: int, size: int) -> None:
    """Who comes last waits for nobody; the others wait for it, and all for the bytes."""
    meter = fs.BubbleMeter()
    expected = []
    # Of three ranks one that receives a broadcast does not wait for the other.
    calls = {op: call for op, call in CALLS.items() if size == 2 or op != "broadcast"}
    for number, (op, call) in enumerate(calls.items()):
        for count in (6, LARGE):
            dist.barrier()
            with meter.step(), fs.priority(fs.Priority.HIGH):
                call_last(
                    rank, size, op, lambda call=call, count=count: call(count), f"{op}{count}"
                )
            expected.append((2 * number + (count == LARGE), op))
    report = meter.report()
    assert [each.rank for each in report.ranks] == list(range(size))
    for each in report.ranks:
        assert [(s.number, *[b.op for b in s.blocked]) for s in each.steps] == expected
        for step in each.steps:
            check_identity(step)
            (blocked,) = step.blocked
            assert blocked.priority == "HIGH"
            last = each.rank == size - 1
            assert (blocked.stragglers_ns > 0) == (not last), (each.rank, step)
            assert blocked.communication_ns > 0 or not last
    assert 0 < report.bubble < 1
    assert report == meter.report()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.freescale_only
def test_late_rank(launch: Launcher, size: int) -> None:
    launch(check_late_rank, size)


def check_hidden(rank: int, size: int) -> None:
    """Communication that is over before anybody waits for it costs nothing."""
    meter = fs.BubbleMeter()
    with meter.step():
        work = dist.all_reduce(torch.ones(LARGE), async_op=True)
        assert work is not None
        while not work.is_completed():
            time.sleep(0.001)
        work.wait()
    (step,) = meter.report().ranks[rank].steps
    assert step.blocked == () and step.compute_ns == step.total_ns > 0


@pytest.mark.freescale_only
def test_hidden_communication(launch: Launcher) -> None:
    launch(check_hidden, 2)


def start_waiting_beside() -> Background:
    """Starts a thread that reduces; returns when it is blocked, and the others were told."""
    beside = Background(lambda: dist.all_reduce(torch.ones(3)))
    while not (_C.blocked_threads() == 1 and is_posted("all_reduce")):
        time.sleep(0.001)
    return beside


def check_other_threads(rank: int, size: int) -> None:
    """A thread beside the step that waits does not block it."""
    meter = fs.BubbleMeter()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["the step is over"])
        dist.all_reduce(torch.ones(3))
    else:
        with meter.step():
            beside = start_waiting_beside()
        store.set("the step is over", "")
        beside.join()
    (step,) = meter.report().ranks[0].steps
    assert step.blocked == () and step.compute_ns == step.total_ns


@pytest.mark.freescale_only
def test_threads_beside_the_step(launch: Launcher) -> None:
    launch(check_other_threads, 2)


def check_join(rank: int, size: int) -> None:
    """The wait of a thread counts for the one that joins it, from the join on."""
    meter = fs.BubbleMeter()
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["joining"])
        dist.all_reduce(torch.ones(3))
    else:
        with meter.step():
            beside = start_waiting_beside()
            watcher = threading.Thread(target=tell_when_joining, args=(store.clone(),))
            watcher.start()
            beside.join()
            watcher.join()
    step = meter.report().ranks[0].steps[0]
    check_identity(step)
    (blocked,) = step.blocked
    assert (blocked.op, blocked.stragglers_ns > 0) == ("all_reduce", True)


def tell_when_joining(store: dist.Store) -> None:
    """Sets the key once the main thread is in ``Background.join``, behind the time it notes."""

    def depth() -> int:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        found = 0
        while frame is not None:
            found += frame.f_code.co_name == "join"
            frame = frame.f_back
        return found

    while depth() < 2:  # the background's join, and the thread's within it
        time.sleep(0.001)
    store.set("joining", "")


@pytest.mark.freescale_only
def test_joined_thread(launch: Launcher) -> None:
    launch(check_join, 2)


def check_nested(rank: int, size: int) -> None:
    """A wait within a completion that runs inside another wait is no further time."""
    meter = fs.BubbleMeter()
    with meter.step():

        def reduce() -> None:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            assert work is not None
            done = work.get_future().then(lambda _: dist.barrier())
            work.wait()
            done.wait()

        call_last(rank, size, "all_reduce", reduce, "nested")
    # On rank 1 the reduction may be over when the barrier is asked for, which then begins at once.
    (step,) = meter.report().ranks[0].steps
    check_identity(step)
    assert [one.op for one in step.blocked] == ["all_reduce"]
    assert step.stragglers_ns > 0


@pytest.mark.freescale_only
def test_nested_waits(launch: Launcher) -> None:
    launch(check_nested, 2)


def check_loader(rank: int, size: int) -> None:
    """What is blocked in next() is not the loader's."""
    meter = fs.BubbleMeter()

    def batches() -> Iterator[int]:
        for number in range(3):
            call_last(
                rank, size, "all_reduce", lambda: dist.all_reduce(torch.ones(3)), f"batch {number}"
            )
            yield number

    for _ in meter.loader(batches()):
        with meter.step():
            pass
    for each in meter.report().ranks:
        assert len(each.steps) == 3
        for step in each.steps:
            check_identity(step)
            assert step.loader_ns > 0
            assert (step.stragglers_ns > 0) == (each.rank == 0)
            assert [one.op for one in step.blocked] == ["all_reduce"]


@pytest.mark.freescale_only
def test_collective_in_a_loader(launch: Launcher) -> None:
    launch(check_loader, 2)


def check_ddp(rank: int, size: int) -> None:
    """DDP waits in C++, through futures, at the end of the backward pass."""
    width = 600  # 1.4 MB: a bucket for each layer
    layers = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    store = dist.distributed_c10d._get_default_store()
    meter = fs.BubbleMeter()

    def tell_at_the_end(gradient: torch.Tensor) -> None:
        """Behind the last layer's bucket, whose future DDP has asked for, and before DDP's end."""

        def tell() -> None:
            while not is_posted("all_reduce"):
                time.sleep(0.001)
            store.set(f"at the end {number}", "")

        torch.autograd.Variable._execution_engine.queue_callback(tell)

    def watch(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        if rank == 0:
            output.register_hook(tell_at_the_end)

    model(torch.ones(4, width)).sum().backward()  # settles what the buckets are
    layers[0].register_forward_hook(watch)
    for number in range(3):
        dist.barrier()
        with meter.step():
            loss = model(torch.ones(4, width)).sum()
            if rank == 1:
                store.wait([f"at the end {number}"])
            loss.backward()
    for each in meter.report().ranks:
        for step in each.steps:
            check_identity(step)
            reductions = [one for one in step.blocked if one.op == "all_reduce"]
            if each.rank == 0:
                assert reductions[0].stragglers_ns > 0, step
            else:
                assert sum(one.stragglers_ns for one in reductions) == 0, step


@pytest.mark.freescale_only
def test_ddp(launch: Launcher) -> None:
    launch(check_ddp, 2)


def check_errors(rank: int, size: int) -> None:
    meter = fs.BubbleMeter(keep=2)
    check_steps_that_do_not_count(meter, lambda: meter.report().ranks[rank].steps)


@pytest.mark.freescale_only
def test_steps_that_do_not_count(launch: Launcher) -> None:
    launch(check_errors, 2)


def check_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([0, 2])
    if rank == 1:
        with pytest.raises(ValueError, match="with this rank in it"):
            fs.BubbleMeter(group).report()
        return
    meter = fs.BubbleMeter(group)
    with meter.step():
        pass
    assert [each.rank for each in meter.report().ranks] == [0, 2]


@pytest.mark.freescale_only
def test_subgroup(launch: Launcher) -> None:
    launch(check_subgroup, 3)


# --- Reports --------------------------------------------------------------------------------------

STEP = StepTime(
    number=7,
    total_ns=1000_000_000,
    compute_ns=600_000_000,
    loader_ns=100_000_000,
    idle_ns=0,
    blocked=(
        Blocked("all_reduce", "NORMAL", 200_000_000, 50_000_000),
        Blocked("all_to_all_single", None, 0, 50_000_000),
    ),
)


def report_of_two() -> BubbleReport:
    other = replace(STEP, compute_ns=900_000_000, blocked=())
    return BubbleReport((RankTimes(0, (STEP, STEP)), RankTimes(5, (other, other))))


def test_the_bubble_is_what_was_not_computed() -> None:
    report = report_of_two()
    assert report.bubble == pytest.approx(0.25)
    assert report.bubble_of(0) == pytest.approx(0.4)
    assert report.bubble_of(5) == pytest.approx(0.1)
    with pytest.raises(KeyError):
        report.bubble_of(1)
    assert BubbleReport((RankTimes(0, ()),)).bubble == 0


def test_tables() -> None:
    text = str(report_of_two())
    head, first, second, everyone, _, _, *blocked = text.splitlines()
    assert head.split()[:3] == ["steps", "step", "ms"]
    percent = "60.0 % 10.0 % 20.0 % 10.0 % 0.0 % 40.0 %"
    assert first.split() == ["rank", "0", "2", "1000.000", *percent.split()]
    assert second.split()[:4] == ["rank", "5", "2", "1000.000"]
    assert everyone.split()[-2:] == ["25.0", "%"]
    assert [line.split() for line in blocked] == [
        ["all_reduce", "NORMAL", "10.0", "%", "2.5", "%"],
        ["all_to_all_single", "0.0", "%", "2.5", "%"],
    ]
    assert len(report_of_two().step_table().splitlines()) == 1 + 4


def test_json(tmp_path: Path) -> None:
    report_of_two().to_json(tmp_path / "report.json")
    loaded: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    assert loaded["format"] == 1 and loaded["bubble"] == pytest.approx(0.25)
    step = loaded["ranks"][0]["steps"][0]
    assert (step["step"], step["stragglers_ns"], step["communication_ns"]) == (
        *(7, 200_000_000),
        100_000_000,
    )
    assert step["blocked"][0]["op"] == "all_reduce"
    assert [rank["rank"] for rank in loaded["ranks"]] == [0, 5]


def test_arguments() -> None:
    with pytest.raises(ValueError, match="keep must be positive, got 0"):
        fs.BubbleMeter(keep=0)
    with pytest.raises(ValueError, match="there is no process group"):
        fs.BubbleMeter().report()
