"""The barrier that names who is missing."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only

SHORT, LONG = timedelta(seconds=1), timedelta(seconds=60)


def check_everybody_comes(rank: int, size: int) -> None:
    for wait_all_ranks in (False, True):
        dist.group.WORLD.monitored_barrier(LONG, wait_all_ranks=wait_all_ranks)


def check_late_ranks(rank: int, size: int, late: list[int]) -> None:
    store = open_store("late")
    dist.barrier()  # so that who is not late comes within the limit
    if rank in late:
        store.wait([f"over {peer}" for peer in range(size) if peer not in late])
    else:
        message = ""
        try:
            dist.group.WORLD.monitored_barrier(SHORT, wait_all_ranks=True)
        except RuntimeError as error:
            message = str(error)
        named = message.rpartition(":")[2]
        for peer in range(size):
            assert (str(peer) in named) == (peer in late), message
        store.set(f"over {rank}", "")


def check_lost_rank(rank: int, size: int, lost: int, wait_all_ranks: bool) -> None:
    """Everybody learns at once, and why."""
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RuntimeError, match=f"rank {lost} did not arrive.*has died") as caught:
        dist.group.WORLD.monitored_barrier(LONG, wait_all_ranks=wait_all_ranks)
    assert "Timed out" not in str(caught.value)
    assert f"Rank {rank} failed" in str(caught.value)


def check_torch_function(rank: int, size: int) -> None:
    """Up to torch 2.13 it wants gloo and says so; later ones take any backend."""
    if rank == 0:
        time.sleep(0.1)
    try:
        dist.monitored_barrier()
    except ValueError as error:
        assert "GLOO" in str(error)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert float(total) == size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_everybody_comes(launch: Launcher, size: int) -> None:
    launch(check_everybody_comes, size)


@pytest.mark.parametrize("late", [[2], [1, 3]])
def test_late_ranks_are_named(launch: Launcher, late: list[int]) -> None:
    launch(check_late_ranks, 4, late)


@pytest.mark.parametrize("wait_all_ranks", [False, True])
@pytest.mark.parametrize("lost", [0, 2])
def test_lost_rank_is_named(launch: Launcher, lost: int, wait_all_ranks: bool) -> None:
    launch(check_lost_rank, 4, lost, wait_all_ranks, dies={lost})


def test_torch_function(launch: Launcher) -> None:
    launch(check_torch_function, 2)
