"""Collectives with a root: broadcast, scatter, gather; and the barrier."""

import time

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

SHAPES = [(4, 3), (0, 5), (), (70_000,)]


def piece(root: int, rank: int, shape: tuple[int, ...]) -> torch.Tensor:
    return arbitrary(shape, key=("rooted", root, rank, shape))


def check_broadcast(rank: int, size: int) -> None:
    for root in range(size):
        for shape in SHAPES:
            expected = piece(root, root, shape)
            tensor = expected.clone() if rank == root else poisoned(shape)
            dist.broadcast(tensor, root)
            assert_same_bits(tensor, expected, f"root {root}, {shape}")


def check_scatter(rank: int, size: int) -> None:
    for root in range(size):
        for shape in SHAPES:
            output = poisoned(shape)
            pieces = [piece(root, peer, shape) for peer in range(size)]
            dist.scatter(output, pieces if rank == root else None, src=root)
            assert_same_bits(output, piece(root, rank, shape), f"root {root}, {shape}")


def check_gather(rank: int, size: int) -> None:
    for root in range(size):
        for shape in SHAPES:
            outputs = [poisoned(shape) for _ in range(size)] if rank == root else None
            dist.gather(piece(root, rank, shape), outputs, dst=root)
            for peer, output in enumerate(outputs or []):
                assert_same_bits(output, piece(root, peer, shape), f"root {root}, rank {peer}")


def check_late_root_holds_back_nobody_but_receivers(rank: int, size: int) -> None:
    """A gather ends on a sender of few bytes although the root has not come yet."""
    if rank == 0:
        time.sleep(0.5)
        outputs = [poisoned(1) for _ in range(size)]
        dist.gather(piece(0, 0, (1,)), outputs, dst=0)
        for peer in range(size):
            assert_same_bits(outputs[peer], piece(0, peer, (1,)), f"rank {peer}")
    else:
        dist.gather(piece(0, rank, (1,)), None, dst=0)


def check_barrier(rank: int, size: int) -> tuple[float, float]:
    dist.barrier()
    if rank == size - 1:
        time.sleep(0.3)
    entered = time.monotonic()
    dist.barrier()
    return entered, time.monotonic()


def check_async_barrier(rank: int, size: int) -> None:
    work = dist.barrier(async_op=True)
    assert work is not None
    work.wait()
    assert work.is_completed()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_broadcast(launch: Launcher, size: int) -> None:
    launch(check_broadcast, size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_scatter(launch: Launcher, size: int) -> None:
    launch(check_scatter, size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gather(launch: Launcher, size: int) -> None:
    launch(check_gather, size)


def test_gather_with_a_late_root(launch: Launcher) -> None:
    launch(check_late_root_holds_back_nobody_but_receivers, 3)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_barrier_lets_nobody_pass_before_the_last_has_come(launch: Launcher, size: int) -> None:
    times = launch(check_barrier, size)
    # CLOCK_MONOTONIC is one clock for all processes of the machine.
    last_entry = max(entered for entered, _ in times)
    first_exit = min(left for _, left in times)
    assert first_exit >= last_entry


def test_async_barrier(launch: Launcher) -> None:
    launch(check_async_barrier, 2)
