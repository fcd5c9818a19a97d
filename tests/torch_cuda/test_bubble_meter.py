"""BubbleMeter on CUDA tensors: where a device says that the time of steps went."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import freescale_pg as fs
from freescale_pg.observe import BubbleReport, RunRecorder, StepTime
from freescale_pg.report.reading import read_run
from harness.late import call_last, is_posted
from harness.odd_steps import check_steps_that_do_not_count
from harness.rank import open_store
from host_operations import computing_on_host
from ranks import Ranks
from stand_in import Gate

COUNT = 3000  # elements for each rank


def check_identity(step: StepTime) -> None:
    parts = (step.compute_ns, step.loader_ns, step.stragglers_ns, step.communication_ns)
    assert all(part >= 0 for part in (*parts, step.idle_ns)), step
    assert sum(parts) == step.total_ns and step.idle_ns == 0, step


def tensors(world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    given = torch.ones(COUNT * world_size).cuda()
    return torch.zeros(COUNT * world_size).cuda(), given


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def have_engine_look(work: dist.Work) -> None:
    """Has the engine see which streams have come: on the host this waits, and moves it along."""
    with pytest.raises(RuntimeError, match="Timed out"):
        work.wait(timedelta(seconds=0.2))


def exchange_behind_gate(
    rank: int,
    world_size: int,
    meter: fs.BubbleMeter | RunRecorder,
    stream: torch.cuda.Stream | None = None,
) -> int:
    """A step in which rank 1's host calls early, and its device comes late.

    Returns:
        For how long rank 0's stream has waited within both steps, at least.
    """
    output, given = tensors(world_size)
    side = stream or torch.cuda.current_stream()
    dist.barrier()
    side.synchronize()
    with meter.step():
        torch.cuda.current_stream().synchronize()
        begun = time.monotonic_ns()
        gate = Gate(side) if rank == 1 else None
        with torch.cuda.stream(side):
            work = dist.all_to_all_single(output, given, async_op=True)
            assert work is not None
            reached = torch.cuda.Event()
            reached.record()
            work.wait()
        if gate is None:
            reached.synchronize()
            since = time.monotonic_ns()
            have_engine_look(work)
            store().set("waiting", str(since))
        else:
            since = max(begun, int(store().get("waiting")))
            have_engine_look(work)
            store().set("waited", str(time.monotonic_ns() - since))
            gate.open()
        if stream is not None:
            side.synchronize()
    return int(store().get("waited"))


def wait_for_late_device(rank: int, world_size: int) -> None:
    meter = fs.BubbleMeter()
    waited = exchange_behind_gate(rank, world_size, meter)
    report = meter.report()
    for each in report.ranks:
        (step,) = each.steps
        check_identity(step)
        (blocked,) = step.blocked
        assert (blocked.op, blocked.priority) == ("all_to_all_single", "NORMAL")
    first, last = (each.steps[0] for each in report.ranks)
    assert first.stragglers_ns >= waited > 0
    # Of rank 0's communication nothing is known: its engine may look when the copies are over.
    assert last.stragglers_ns == 0 and last.communication_ns > 0
    assert last.compute_ns >= waited, "what held its stream back is its own"
    assert 0 < report.bubble < 1 and report == meter.report()


@pytest.mark.parametrize("devices", [(0, 1), (0, 0)], ids=["two devices", "one device"])
def test_late_device(
    run_ranks: Ranks, submission: dict[str, str], devices: tuple[int, ...]
) -> None:
    """Both hosts have called; only the device of one has not come."""
    run_ranks(2, wait_for_late_device, devices=devices, environment=submission)


def record_late_device(rank: int, world_size: int, directory: str) -> int:
    with fs.record_run(directory) as recorder:
        waited = exchange_behind_gate(rank, world_size, recorder)
        recorder.save()
    return waited


def test_recorded_steps_are_the_devices(run_ranks: Ranks, tmp_path: Path) -> None:
    waited, _ = run_ranks(2, record_late_device, str(tmp_path), devices=(0, 1))
    run = read_run(tmp_path)
    assert run.missing == ()
    (first,), (last,) = ([step.time for step in rank.steps] for rank in run.ranks.values())
    for step in (first, last):
        check_identity(step)
        assert [blocked.op for blocked in step.blocked] == ["all_to_all_single"]
    assert first.stragglers_ns >= waited > 0
    assert last.stragglers_ns == 0 and last.compute_ns >= waited
    assert all(rank.trace is not None for rank in run.ranks.values())


def wait_on_side_stream(rank: int, world_size: int) -> None:
    meter = fs.BubbleMeter()
    exchange_behind_gate(rank, world_size, meter, torch.cuda.Stream())
    for each in meter.report().ranks:
        (step,) = each.steps
        assert step.blocked == () and step.compute_ns == step.total_ns > 0


def test_what_another_stream_waits_for(run_ranks: Ranks) -> None:
    run_ranks(2, wait_on_side_stream)


def end_behind_gate(rank: int, world_size: int) -> None:
    meter = fs.BubbleMeter()
    output, given = tensors(world_size)
    dist.barrier()
    with Gate() as gate:
        for _ in range(3):
            with meter.step():
                dist.all_to_all_single(output, given)
        assert not torch.cuda.current_stream().query()
        # Who asks waits for the device.
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.extend(meter.own_steps()))
        asking.start()
        assert not torch.cuda.current_stream().query() and not found
        gate.open()
        asking.join()
    assert [step.number for step in found] == [0, 1, 2]
    for step in found:
        check_identity(step)


def test_steps_do_not_wait_for_the_device(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, end_behind_gate, environment=submission)


LOAD_SECONDS = 0.5


def slow_batches() -> Iterator[int]:
    for number in range(2):
        if number == 0:
            torch.cuda.synchronize()  # is where the load has begun
        time.sleep(LOAD_SECONDS)
        yield number


def load_ahead(rank: int, world_size: int) -> None:
    """Of a load only that counts during which the device had nothing else to do."""
    meter = fs.BubbleMeter()
    gate = None
    for number in meter.loader(slow_batches()):
        with meter.step():
            if number == 0:
                torch.cuda.synchronize()
                gate = Gate()  # what was loaded first is not through when the second one is
            else:
                assert gate is not None
                gate.open()
    idle, busy = meter.own_steps()
    check_identity(idle)
    check_identity(busy)
    # The first step lasts until the gate opens, behind the second load.
    assert idle.loader_ns >= 1e9 * LOAD_SECONDS and idle.compute_ns >= 1e9 * LOAD_SECONDS
    assert busy.loader_ns < 1e9 * LOAD_SECONDS


def test_loads_behind_a_busy_device(run_ranks: Ranks) -> None:
    run_ranks(1, load_ahead, init=False)


def wait_on_the_host(rank: int, world_size: int) -> None:
    """What a host waits for on tensors of its own holds the stream back likewise."""
    meter = fs.BubbleMeter()
    # A stream that is behind its host does not know how long that has waited: the begin of the wait
    # has to be passed before the last rank comes.
    pass_begin = torch.cuda.current_stream().synchronize
    dist.barrier()
    with meter.step():
        call_last(
            rank,
            world_size,
            "all_reduce",
            lambda: dist.all_reduce(torch.ones(5)),
            "late",
            pass_begin,
        )
    first, last = (each.steps[0] for each in meter.report().ranks)
    (blocked,) = first.blocked
    check_identity(first)
    assert blocked.op == "all_reduce" and 0 < blocked.stragglers_ns <= first.total_ns, (first, last)
    assert last.stragglers_ns == 0


def test_collectives_of_the_host(run_ranks: Ranks) -> None:
    run_ranks(2, wait_on_the_host)


def wait_in_another_thread(rank: int, world_size: int) -> None:
    """What a thread beside the step waits for on the host holds nothing of the step back."""
    meter = fs.BubbleMeter()

    def reduce() -> None:
        call_last(rank, world_size, "all_reduce", lambda: dist.all_reduce(torch.ones(5)), "late")

    dist.barrier()
    with meter.step():
        beside = threading.Thread(target=reduce)
        beside.start()
        beside.join()
    (step,) = meter.own_steps()
    assert step.blocked == () and step.compute_ns == step.total_ns > 0


def test_what_another_thread_waits_for(run_ranks: Ranks) -> None:
    run_ranks(2, wait_in_another_thread)


def tell_when_waiting(op: str, stream: torch.cuda.Stream) -> None:
    """Sets a key in the store once rank 0 has called, and its stream is past the wait's begin."""
    while dist.get_rank() == 0 and not is_posted(op):
        time.sleep(0.001)
    stream.synchronize()
    store().set(f"waiting {dist.get_rank()}", "")


class ExchangeInBackward(torch.autograd.Function):
    """Waits as DDP does: through a future, in a callback at the end of the pass."""

    @staticmethod
    def forward(ctx: Any, given: torch.Tensor, start: Callable[[], dist.Work]) -> torch.Tensor:
        ctx.start = start
        ctx.stream = torch.cuda.current_stream()
        return given.view_as(given)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        future = ctx.start().get_future()

        def wait() -> None:
            tell_when_waiting("all_to_all_single", ctx.stream)
            future.wait()

        torch.autograd.Variable._execution_engine.queue_callback(wait)
        return gradients[0], None


def wait_at_end_of_backward(rank: int, world_size: int) -> None:
    meter = fs.BubbleMeter()
    output, given = tensors(world_size)
    leaf = torch.ones(4, requires_grad=True)

    def start() -> dist.Work:
        if rank == 1:
            store().wait(["waiting 0"])
        work = dist.all_to_all_single(output, given, async_op=True)
        assert work is not None
        return work

    dist.barrier()
    torch.cuda.synchronize()
    with meter.step():
        result = ExchangeInBackward.apply(leaf.cuda(), start).cpu()
        result.backward(torch.ones(4))
    (step,) = meter.own_steps()
    check_identity(step)
    if rank == 0:
        assert [blocked.op for blocked in step.blocked] == ["all_to_all_single"]
        assert step.stragglers_ns > 0
    else:
        assert step.stragglers_ns == 0


def test_futures_at_the_end_of_a_backward_pass(run_ranks: Ranks) -> None:
    run_ranks(2, wait_at_end_of_backward)


def step_with_ddp(rank: int, world_size: int) -> None:
    """Rank 1 comes to its backward pass when rank 0's stream waits for it at the end of its own."""
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group(
        "freescale",
        store=open_store("default"),
        rank=rank,
        world_size=world_size,
        pg_options=fs.Options(reductions="exchange"),
    )
    stream = torch.cuda.current_stream()

    def tell() -> None:
        tell_when_waiting("all_reduce", stream)

    def add_up(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        future = work.get_future()
        # Behind the callback that begins the wait, before the one in which DDP waits.
        torch.autograd.Variable._execution_engine.queue_callback(tell)
        return future.then(lambda done: done.value()[0])

    meter = fs.BubbleMeter()
    with computing_on_host():
        model = DistributedDataParallel(
            torch.nn.Linear(3, 1, bias=False).to(device), device_ids=[device]
        )
        model.register_comm_hook(None, add_up)
        given = torch.full((1, 3), rank + 1.0).to(device)
        dist.barrier()
        with meter.step():
            total = model(given).sum()
            if rank == 1:
                store().wait(["waiting 0"])
            total.backward()
        assert model.module.weight.grad is not None
        assert model.module.weight.grad.cpu().tolist() == [[3.0, 3.0, 3.0]]
    (step,) = meter.own_steps()
    check_identity(step)
    reduced = [blocked for blocked in step.blocked if blocked.op == "all_reduce"]
    if rank == 0:
        assert len(reduced) == 1 and reduced[0].stragglers_ns > 0, step
    else:
        assert step.stragglers_ns == 0, step


def test_ddp(run_ranks: Ranks) -> None:
    # Of what the first group of a process makes, some is kept to its end.
    run_ranks(2, step_with_ddp, init=False, checks_footprint=False)


def take_odd_steps(rank: int, world_size: int) -> None:
    meter = fs.BubbleMeter(device=torch.cuda.current_device(), keep=2)
    check_steps_that_do_not_count(meter, meter.own_steps)
    with pytest.raises(ValueError, match="one of 3 CUDA devices, got cuda:3"):
        fs.BubbleMeter(device=3)
    with pytest.raises(ValueError, match="got meta"):
        fs.BubbleMeter(device="meta")


def test_steps_that_do_not_count(run_ranks: Ranks) -> None:
    run_ranks(1, take_odd_steps, init=False)


def measure_subgroup(rank: int, world_size: int) -> BubbleReport | None:
    group = dist.new_group([0, 2])
    if rank == 1:
        return None
    meter = fs.BubbleMeter(group)
    output, given = tensors(2)
    with meter.step():
        dist.all_to_all_single(output, given, group=group)
    return meter.report()


def test_subgroup(run_ranks: Ranks) -> None:
    first, _, last = run_ranks(3, measure_subgroup, devices=(0, 1, 2))
    assert first == last and [each.rank for each in first.ranks] == [0, 2]


def measure_the_host(rank: int, world_size: int) -> None:
    """Where somebody asks for the host, streams do not matter."""
    meter = fs.BubbleMeter(device="cpu")
    with Gate() as gate:
        with meter.step():
            pass
        assert len(meter.own_steps()) == 1
        gate.open()


def test_the_host_beside_a_device(run_ranks: Ranks) -> None:
    run_ranks(1, measure_the_host, init=False)
