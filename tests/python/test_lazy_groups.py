"""Groups of ``Options(eager=False)``: connected by the first calls of their members."""

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only

CPU = torch.device("cpu")


def lazy_group(timeout: float = 60.0) -> dist.ProcessGroup:
    group = dist.new_group(pg_options=fs.Options(eager=False), timeout=timedelta(seconds=timeout))
    assert isinstance(group, dist.ProcessGroup)
    return group


def backend_of(group: dist.ProcessGroup) -> Any:
    return group._get_backend(CPU)


def check_first_call_connects(rank: int, size: int) -> None:
    group = lazy_group()
    assert backend_of(group).links() == []
    output = torch.empty(size)
    dist.all_to_all_single(output, torch.full((size,), float(rank)), group=group)
    assert torch.equal(output, torch.arange(float(size)))
    assert [peer for peer, _, _ in backend_of(group).links()] == list(range(size))
    dist.destroy_process_group(group)


def check_first_calls_of_all_kinds(rank: int, size: int) -> None:
    """Also such that differ between the ranks, as long as each makes one."""
    group = lazy_group()
    token = torch.full((1,), float(rank))
    if rank == 0:
        for peer in range(1, size):
            dist.send(token, peer, group=group)
    else:
        dist.recv(token, 0, group=group)
    assert token.item() == 0.0
    group = lazy_group()
    work = dist.all_reduce(token.fill_(1.0), group=group, async_op=True)
    assert work is not None
    work.wait()
    assert token.item() == size
    backend_of(lazy_group()).monitored_barrier()


def check_first_calls_of_two_threads(rank: int, size: int) -> None:
    group = lazy_group()
    peer = 1 - rank
    got = [torch.full((1,), -1.0) for _ in range(2)]

    def talk(tag: int) -> None:
        sent = dist.isend(torch.full((1,), float(10 * tag + rank)), peer, group=group, tag=tag)
        dist.recv(got[tag], peer, group=group, tag=tag)
        assert sent is not None
        sent.wait()

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [token.item() for token in got] == [peer, 10 + peer]


def check_group_that_nobody_uses(rank: int, size: int) -> None:
    group = lazy_group()
    backend = backend_of(group)
    assert "SUCCESS" in str(backend.get_error())
    dist.destroy_process_group(group)
    aborted = lazy_group()
    backend_of(aborted).abort()
    with pytest.raises(dist.DistBackendError, match="the group was aborted and cannot be used"):
        dist.barrier(group=aborted)


def check_rank_that_leaves_first(rank: int, size: int) -> None:
    group = lazy_group()
    if rank == size - 1:
        dist.destroy_process_group(group)
        return
    begin = time.monotonic()
    with pytest.raises(dist.DistBackendError, match=rf"rank {size - 1}: it gave up: the group was"):
        dist.barrier(group=group)
    assert time.monotonic() - begin < 30, "it waited for the timeout"
    with pytest.raises(dist.DistBackendError, match="the group could not be made"):
        dist.barrier(group=group)


def check_rank_that_makes_no_call(rank: int, size: int) -> None:
    group = lazy_group(timeout=2.0)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"making the group: .*ranks? 1"):
            dist.barrier(group=group)


def check_default_group(rank: int, size: int) -> None:
    dist.init_process_group(
        "freescale",
        store=open_store("lazy"),
        rank=rank,
        world_size=size,
        pg_options=fs.Options(eager=False),
    )
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == size


def test_first_call_connects(launch: Launcher) -> None:
    launch(check_first_call_connects, 3)


def test_first_calls_of_all_kinds(launch: Launcher) -> None:
    launch(check_first_calls_of_all_kinds, 3)


def test_first_calls_of_two_threads(launch: Launcher) -> None:
    launch(check_first_calls_of_two_threads, 2)


def test_group_that_nobody_uses(launch: Launcher) -> None:
    launch(check_group_that_nobody_uses, 2)


def test_rank_that_leaves_before_its_first_call(launch: Launcher) -> None:
    launch(check_rank_that_leaves_first, 3)


def test_rank_that_makes_no_call(launch: Launcher) -> None:
    launch(check_rank_that_makes_no_call, 2)


def test_default_group(launch: Launcher) -> None:
    launch(check_default_group, 2, init=False)
