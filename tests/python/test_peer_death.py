"""A rank that dies wakes all that wait for it, with its number in the message."""

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

# Seconds. The group's timeout is far above, so an error within this came from the death itself.
TIMEOUT = 60.0
WAKE_LIMIT = 20.0
LARGE = 2_000_000


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def expect_loss(call: Callable[[], object], dead: int) -> None:
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        assert f"rank {dead}" in str(error), error
    else:
        raise AssertionError("no error")
    assert time.monotonic() - begin < WAKE_LIMIT


def check_waiting_ranks_wake(rank: int, size: int, dead: int) -> None:
    survivors = dist.new_group([peer for peer in range(size) if peer != dead])
    dist.barrier()
    if rank == dead:
        time.sleep(0.3)  # The others wait by then.
        die()
    expect_loss(lambda: dist.all_reduce(torch.ones(1)), dead)
    # Later calls fail too, and at once.
    expect_loss(lambda: dist.all_to_all_single(torch.empty(size), torch.ones(size)), dead)
    # No survivor leaves before: that would be another reason for the others' errors.
    dist.barrier(survivors)


def check_death_within_a_transfer(rank: int, size: int) -> None:
    """Chunks are on their way when it happens."""
    survivors = dist.new_group([peer for peer in range(size) if peer != 1])
    dist.barrier()
    output, given = torch.empty(size * LARGE), torch.ones(size * LARGE)
    work = dist.all_to_all_single(output, given, async_op=True)
    assert work is not None
    if rank == 1:
        die()
    # The exchange may have been completed by a rank that was fast; the next one cannot be.
    expect_loss(lambda: (work.wait(), dist.all_reduce(torch.ones(1))), 1)
    dist.barrier(survivors)  # none leaves before


def check_async_works_end(rank: int, size: int) -> None:
    survivors = dist.new_group(list(range(1, size)))
    dist.barrier()
    if rank == 0:
        time.sleep(0.3)
        die()
    works = [dist.all_reduce(torch.ones(count), async_op=True) for count in (1, LARGE)]
    for work in works:
        assert work is not None
        expect_loss(work.wait, 0)
        assert work.is_completed()
        expect_loss(work.wait, 0)
    error = dist.group.WORLD._get_backend(torch.device("cpu")).get_error()
    assert error is not None
    dist.barrier(survivors)  # none leaves before


def check_receiver_wakes(rank: int, size: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        die()
    if rank == 0:
        expect_loss(lambda: dist.recv(torch.empty(1), 1), 1)
        # From anyone: the dead rank may be the one that would have sent.
        expect_loss(lambda: dist.recv(torch.empty(1)), 1)


def check_receiver_from_anyone_wakes(rank: int, size: int) -> None:
    dist.barrier()
    if rank == 1:
        time.sleep(0.3)
        die()
    if rank == 0:
        expect_loss(lambda: dist.recv(torch.empty(1)), 1)


def check_others_go_on(rank: int, size: int) -> None:
    """Groups without the dead rank are not affected."""
    survivors = dist.new_group([0, 2])
    dist.barrier()
    if rank == 1:
        die()
    expect_loss(lambda: dist.all_reduce(torch.ones(1)), 1)
    for _ in range(20):
        total = torch.ones(10_000)
        dist.all_reduce(total, group=survivors)
        assert torch.equal(total, torch.full((10_000,), 2.0))


@pytest.mark.parametrize(("size", "dead"), [(2, 0), (2, 1), (4, 0), (4, 2)])
def test_waiting_ranks_wake(launch: Launcher, size: int, dead: int) -> None:
    launch(check_waiting_ranks_wake, size, dead, dies={dead}, timeout=TIMEOUT)


@pytest.mark.parametrize("size", [2, 3])
def test_death_within_a_transfer(launch: Launcher, size: int) -> None:
    launch(check_death_within_a_transfer, size, dies={1}, timeout=TIMEOUT)


def test_asynchronous_works_end(launch: Launcher) -> None:
    launch(check_async_works_end, 3, dies={0}, timeout=TIMEOUT)


def test_receiver_wakes(launch: Launcher) -> None:
    launch(check_receiver_wakes, 3, dies={1}, timeout=TIMEOUT)
    launch(check_receiver_from_anyone_wakes, 3, dies={1}, timeout=TIMEOUT)


def test_groups_without_the_dead_rank_go_on(launch: Launcher) -> None:
    launch(check_others_go_on, 3, dies={1}, timeout=TIMEOUT)
