"""torch's profiler around collectives."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only


def check_many(rank: int, size: int) -> None:
    """Works that end on other threads than they began on.

    None after the profiler: torch then writes into memory that the profiler has given back, with
    gloo as with any other backend that ends works late.
    """
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
