"""Groups that are aborted or destroyed while operations are in flight."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only

# Seconds of the groups' timeout, far above what an abort takes: who waits that long was not freed.
TIMEOUT = 60.0
LARGE = 300_000

# What must not keep a destroyed group's resources.
kept: list[object] = []


def check_abort_beside_a_stuck_rank(rank: int, size: int) -> None:
    """The others leave, and go on without the rank that hangs."""
    stuck = 2
    watch = open_store("watch")
    if rank == stuck:
        watch.get("gone")  # Never calls a collective; the others must not need it.
        return
    begin = time.monotonic()
    given = torch.ones(size * LARGE)
    works = [
        dist.all_to_all_single(torch.empty_like(given), given, async_op=True) for _ in range(3)
    ]
    dist.group.WORLD.abort()
    for work in works:
        assert work is not None
        with pytest.raises(RuntimeError, match=r"abort|closed|cannot be used"):
            work.wait()
    dist.destroy_process_group()
    assert time.monotonic() - begin < TIMEOUT / 2
    others = [peer for peer in range(size) if peer != stuck]
    dist.init_process_group(
        "freescale",
        store=open_store("again"),
        rank=others.index(rank),
        world_size=len(others),
        timeout=timedelta(seconds=TIMEOUT),
    )
    total = torch.ones(3)
    dist.all_reduce(total)
    assert_same_bits(total, torch.full((3,), float(len(others))), "without the stuck rank")
    dist.barrier()
    watch.set("gone", "yes")


def check_destroy_in_flight(rank: int, size: int) -> None:
    """Each gather is complete and right, or has failed; never a success with half an output."""
    for count in (5, LARGE):
        group = dist.new_group()
        outputs = [poisoned(size * count) for _ in range(20)]
        works = [
            dist.all_gather_into_tensor(
                output, arbitrary(count, key=(number, rank)), group=group, async_op=True
            )
            for number, output in enumerate(outputs)
        ]
        dist.destroy_process_group(group)
        for number, (work, output) in enumerate(zip(works, outputs, strict=True)):
            assert work is not None
            try:
                work.wait()
            except RuntimeError:
                continue
            parts = [arbitrary(count, key=(number, peer)) for peer in range(size)]
            assert_same_bits(output, torch.cat(parts), (count, number))
        del group, works, work
    dist.barrier()


def check_references_that_are_kept(rank: int, size: int) -> None:
    """The harness finds what a destroyed group keeps of the machine."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(1, 3)).sum().backward()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    assert work is not None
    work.wait()
    pending = dist.irecv(torch.empty(1), (rank + 1) % size)
    kept.extend([dist.group.WORLD, model, work, pending])


def check_buffer_of_an_aborted_receive(rank: int, size: int) -> None:
    """An aborted receive gives its buffer back: what is sent later does not land in it."""
    for count in (5, LARGE):
        group = dist.new_group()
        old = poisoned(count)
        work = dist.irecv(old, 1 - rank, group=group)
        assert work is not None
        aborter = threading.Thread(target=group.abort)
        aborter.start()
        with pytest.raises(RuntimeError, match=r"abort|closed|cannot be used"):
            work.wait()
        aborter.join()
        fresh = dist.new_group()
        output = poisoned(2 * count)
        given = torch.cat([arbitrary(count, key=(rank, peer)) for peer in range(2)])
        dist.all_to_all_single(output, given, group=fresh)
        expected = torch.cat([arbitrary(count, key=(peer, rank)) for peer in range(2)])
        assert_same_bits(output, expected, count)
        assert_same_bits(old, poisoned(count), "the receive's buffer")


def check_destroy_in_any_order(rank: int, size: int) -> None:
    """Nobody waits for the others in destroying a group."""
    groups = [dist.new_group() for _ in range(12)]
    for number, group in enumerate(groups):
        dist.all_reduce(torch.full((3,), float(number)), group=group)
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(rank)).tolist()
    for number in order:
        dist.destroy_process_group(groups[number])
        groups[number] = None
    dist.barrier()


def check_destroy_at_once(rank: int, size: int) -> None:
    """One rank is through with a group before the other has made it."""
    store = open_store("turns")
    for turn in range(20):
        group = dist.new_group()
        store.set(f"made {turn}", "") if rank == 0 else None
        if rank == 1:
            dist.all_reduce(torch.ones(1))
        dist.destroy_process_group(group)
        if rank == 0:
            dist.all_reduce(torch.ones(1))


def test_abort_beside_a_stuck_rank(launch: Launcher) -> None:
    launch(check_abort_beside_a_stuck_rank, 4, timeout=TIMEOUT)


@pytest.mark.parametrize("size", [2, 3])
def test_destroy_in_flight(launch: Launcher, size: int) -> None:
    launch(check_destroy_in_flight, size)


def test_kept_references_keep_nothing_else(launch: Launcher) -> None:
    launch(check_references_that_are_kept, 2)


def test_buffer_of_an_aborted_receive(launch: Launcher) -> None:
    launch(check_buffer_of_an_aborted_receive, 2)


def test_destroy_in_another_order_on_each_rank(launch: Launcher) -> None:
    launch(check_destroy_in_any_order, 3)


def test_destroy_while_the_peer_still_makes_the_group(launch: Launcher) -> None:
    launch(check_destroy_at_once, 2)
