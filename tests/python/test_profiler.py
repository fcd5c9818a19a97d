"""torch's profiler around collectives."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only


def check_many(rank: int, size: int) -> None:
    """Works that end on other threads than they began on, some after the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        works = [
            dist.all_to_all_single(torch.empty(size * 9), torch.ones(size * 9), async_op=True)
            for _ in range(300)
        ]
        for work in works[:200]:
            assert work is not None
            work.wait()
    for work in works[200:]:
        assert work is not None
        work.wait()
    events = [event for event in profiler.events() if event.name == "freescale:all_to_all_single"]
    assert len(events) >= 200
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
