"""torch's profiler around collectives."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only


def check_many(rank: int, size: int) -> None:
    """Works that end on other threads than they began on."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        works = [
            dist.all_to_all_single(torch.empty(size * 9), torch.ones(size * 9), async_op=True)
            for _ in range(300)
        ]
        for work in works:
            assert work is not None
            work.wait()
    events = [event for event in profiler.events() if event.name == "freescale:all_to_all_single"]
    assert len(events) == len(works)
    assert all(event.time_range.elapsed_us() >= 0 for event in events)


def check_end(rank: int, size: int) -> None:
    """The range of a work that ends on another thread ends when it is waited for."""
    store = open_store("profiler")
    if rank == 1:
        store.wait(["posted"])
        time.sleep(0.02)
        return dist.send(torch.ones(9), 0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        work = dist.irecv(torch.empty(9), 1)
        store.set("posted", "")
        assert work is not None
        while not work.is_completed():
            time.sleep(0.001)
        work.wait()
        torch.ones(9)
    shown = {event.name: event.time_range for event in profiler.events()}
    # A sleep is never too short; less where the profiler's clock differs.
    assert shown["freescale:recv"].elapsed_us() >= 19_000
    assert shown["freescale:recv"].end <= shown["aten::ones"].start


def check_works_that_outlast(rank: int, size: int) -> None:
    """Most works end when the profiler has given its memory back, and others have it."""
    count, length = 50, 100_000
    box = torch.empty(length)
    for _ in range(4):
        if rank == 0:
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                works = [dist.isend(torch.ones(length), 1, tag=tag) for tag in range(count)]
            names = [event.name for event in profiler.events()]
            assert names.count("freescale:send") == count
            del profiler
            others = [bytearray(size % 3000 + 10) for size in range(20_000)]
            dist.send(torch.ones(1), 1, tag=count)
            for work in works:
                assert work is not None
                work.wait()
            assert not any(map(any, others))
        else:
            dist.recv(torch.empty(1), 0, tag=count)
            for tag in range(count):
                dist.recv(box, 0, tag=tag)


def check_beside_other_threads(rank: int, size: int) -> None:
    """One thread profiles, again and again, while another goes on with its own group."""
    group = dist.new_group()

    def work() -> None:
        for _ in range(200):
            dist.all_reduce(torch.ones(9), group=group)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(5):
        with profile(activities=[ProfilerActivity.CPU]):
            for _ in range(20):
                dist.all_reduce(torch.ones(9))
    thread.join()
    dist.barrier()


def test_many_works(launch: Launcher) -> None:
    launch(check_many, 2, checks_footprint=False)


def test_end(launch: Launcher) -> None:
    launch(check_end, 2, checks_footprint=False)


def test_works_that_outlast_the_profiler(launch: Launcher) -> None:
    launch(check_works_that_outlast, 2, checks_footprint=False)


def test_beside_other_threads(launch: Launcher) -> None:
    launch(check_beside_other_threads, 2, checks_footprint=False)


def check_names(rank: int, size: int) -> None:
    """Every operation is shown by its name, with its size and number beside."""
    ones = torch.ones(size)
    pieces = list(torch.empty(size).split(1))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(ones)
        dist.reduce(ones, 0)
        dist.reduce_scatter_tensor(torch.empty(1), ones)
        dist.all_gather_into_tensor(torch.empty(size), torch.ones(1))
        dist.all_gather(pieces, torch.ones(1))
        dist.all_to_all_single(torch.empty(size), ones)
        dist.broadcast(ones, 0)
        dist.gather(torch.ones(1), pieces if rank == 0 else None)
        dist.scatter(torch.empty(1), list(ones.split(1)) if rank == 0 else None)
        if rank == 0:
            dist.send(ones, 1)
        else:
            dist.recv(ones, 0)
        dist.barrier()
    names = [event.name for event in profiler.events()]
    expected = {
        *("all_reduce", "reduce", "reduce_scatter_tensor", "all_gather_into_tensor"),
        *("all_gather", "all_to_all_single", "broadcast", "gather", "scatter", "barrier"),
        "send" if rank == 0 else "recv",
    }
    shown = [name.removeprefix("freescale:") for name in names if name.startswith("freescale:")]
    assert sorted(shown) == sorted(expected)
    assert names.count("record_param_comms") == len(expected)


def test_names(launch: Launcher) -> None:
    launch(check_names, 2, checks_footprint=False)
