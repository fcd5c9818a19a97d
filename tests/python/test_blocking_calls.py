"""Calls that block let the other threads of their program run."""

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only


def beside(call: Callable[[], object], task: Callable[[], object]) -> None:
    """Runs ``call`` while a thread does ``task``, without which it cannot return."""
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            task()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=guarded)
    thread.start()
    call()
    thread.join()
    assert not failures, failures


def check_collectives(rank: int, size: int) -> None:
    """Rank 1 comes to the collective once a thread of rank 0 has run Python code."""
    store = open_store("threads")
    pending = []

    def wait_for_work() -> None:
        work = dist.all_reduce(torch.ones(9), async_op=True)
        assert work is not None
        pending.append(work)
        work.wait()

    calls: dict[str, Callable[[], object]] = {
        "barrier": dist.barrier,
        "all_reduce": lambda: dist.all_reduce(torch.ones(9)),
        "large": lambda: dist.all_reduce(torch.ones(500_000)),
        "wait": wait_for_work,
        "future": lambda: future_of(dist.all_reduce(torch.ones(9), async_op=True)).wait(),
        "new_group": dist.new_group,
    }
    for name, call in calls.items():
        if rank == 0:
            beside(call, lambda name=name: store.set(name, str(sum(range(100_000)))))
        else:
            store.get(name)
            call()


def future_of(work: dist.Work | None) -> torch.futures.Future[list[torch.Tensor]]:
    assert work is not None
    return work.get_future()


def check_init(rank: int, size: int) -> None:
    store = open_store("threads")

    def init() -> None:
        dist.init_process_group(
            "freescale",
            store=open_store("late"),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=60),
        )

    if rank == 0:
        beside(init, lambda: store.set("go", str(sum(range(100_000)))))
    else:
        store.get("go")
        init()
    dist.barrier()


def check_one_thread_feeds_another(rank: int, size: int) -> None:
    """A thread waits for a message whose sender waits for a message of the other thread."""
    answers = dist.new_group()
    answer = torch.zeros(1)
    if rank == 0:
        beside(
            lambda: dist.recv(answer, 1, group=answers),
            lambda: dist.send(torch.full((1,), 7.0), 1),
        )
        assert float(answer) == 8
    else:
        dist.recv(answer, 0)
        dist.send(answer + 1, 0, group=answers)


def check_other_order_than_gloo(rank: int, size: int) -> None:
    """An exchange here and a reduction on gloo, in opposite order on half the ranks."""
    gloo = dist.new_group(backend="gloo")
    for turn in range(20):
        count = 5 if turn % 2 else 100_000
        output, total = torch.empty(size * count), torch.ones(count)
        calls = [
            lambda output=output: dist.all_to_all_single(
                output, torch.full_like(output, float(rank)), async_op=True
            ),
            lambda total=total: dist.all_reduce(total, group=gloo, async_op=True),
        ]
        for work in [call() for call in (calls if rank % 2 else reversed(calls))]:
            assert work is not None
            work.wait()
        assert torch.equal(output, torch.arange(float(size)).repeat_interleave(count))
        assert torch.equal(total, torch.full((count,), float(size)))


def test_collectives(launch: Launcher) -> None:
    launch(check_collectives, 2)


def test_init(launch: Launcher) -> None:
    launch(check_init, 2, init=False)


def test_one_thread_feeds_another(launch: Launcher) -> None:
    launch(check_one_thread_feeds_another, 2)


def test_other_order_than_gloo(launch: Launcher) -> None:
    launch(check_other_order_than_gloo, 4, checks_footprint=False)
