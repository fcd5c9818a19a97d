"""Ranks that count as on different hosts (``FREESCALE_HOST``), over UCX on the loopback interface.

Needs no root. Real interfaces, cuts and restarts are for ``tests/multihost``.
"""

import importlib.util
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

import test_all_gather
import test_all_to_all
import test_point_to_point
import test_priorities
import test_reductions
import test_rooted
from harness.data import arbitrary, assert_same_bits, poisoned
from harness.hosts import run_on_hosts
from harness.launch import Launcher

pytestmark = [
    pytest.mark.freescale_only,
    pytest.mark.skipif(
        importlib.util.find_spec("libucx") is None, reason="no UCX: pip install libucx-cu12"
    ),
]

Body = Callable[[int, int], None]

# The host of each rank.
HOSTS = [(0, 0, 1, 1), (0, 1, 0, 1, 1), (0, 1, 1), (0, 1, 2)]
# Up to there parts are gathered by host.
AGGREGATED = 1000
# The kernel takes one chunk of the two or more that are sent at a time.
SMALL_BUFFERS = {"UCX_TCP_SNDBUF": "32k", "UCX_TCP_RCVBUF": "32k"}
# Of 64 MiB each, more than can be sent before the group's timeout.
MESSAGES = 64
ATTEMPTS = 10
LIMIT = 30.0


def run(
    launch: Launcher,
    hosts: tuple[int, ...],
    body: Body,
    aggregated: int = 0,
    more: Mapping[str, str] | None = None,
) -> None:
    environment = {"UCX_TLS": "tcp", "FREESCALE_AGGREGATE_BYTES": str(aggregated), **(more or {})}
    # UCX stays: its threads and descriptors are those of the process.
    launch(
        run_on_hosts, len(hosts), hosts, body, init=False, environment=environment,
        checks_footprint=False,
    )  # fmt: skip


def check_equal_parts(rank: int, size: int) -> None:
    """Around the length up to which they are gathered; several at once, in any layout."""
    counts = [0, 1, 7, AGGREGATED - 1, AGGREGATED, AGGREGATED + 1, 50_000]
    flights = []
    for number, count in enumerate(counts * 2):
        given = torch.cat(
            [arbitrary(count, torch.uint8, key=(number, rank, to)) for to in range(size)]
        )
        expected = torch.cat(
            [arbitrary(count, torch.uint8, key=(number, peer, rank)) for peer in range(size)]
        )
        output = poisoned(size * count, torch.uint8)
        flights.append((dist.all_to_all_single(output, given, async_op=True), output, expected))
    strided = torch.arange(2 * size * 5.0).view(size * 5, 2)[:, 1]
    transposed = poisoned((size * 5,))
    dist.all_to_all_single(transposed, strided)
    assert_same_bits(transposed, strided.view(size, 5)[rank].repeat(size), "strided")
    for work, output, expected in flights:
        work.wait()
        assert_same_bits(output, expected, "equal parts")


def check_parts_in_place(rank: int, size: int) -> None:
    """What a rank keeps may already lie where it belongs."""
    both = torch.full((2 * size,), rank)
    output = both[:size]
    with pytest.raises(ValueError, match="overlap"):
        dist.all_to_all_single(output, output)
    dist.all_to_all_single(output, both[size:])
    assert output.tolist() == list(range(size))


def check_splits_on_one_rank(rank: int, size: int) -> None:
    """A rank on the way does not know how long parts are that it was not told of."""
    output, given = poisoned((size,)), torch.ones(size)
    splits = [1] * size if rank == 1 else None
    with pytest.raises(RuntimeError) as caught:
        for _ in range(2):  # a rank that was done learns of it from its next call
            dist.all_to_all_single(output, given, splits, splits)
    words = "equal parts, gathered by host" if rank == 1 else "rank [0-9]"
    assert re.search(words, str(caught.value)), caught.value


def check_sent_memory_outlives_its_operation(rank: int, size: int) -> None:
    """Rank 1 is stopped within a message, and rank 0 gives up: the network still reads there.

    Unless rank 1 had all that was sent by then, so they try again.
    """
    pids: list[int] = [0] * size
    dist.all_gather_object(pids, os.getpid())
    for _ in range(ATTEMPTS):
        data = torch.zeros(16 << 20) if rank == 1 else torch.ones(16 << 20)
        group = dist.new_group()
        group.set_timeout(timedelta(seconds=1))
        kept = [receive_halfway(data, group) if rank == 1 else send_halfway(data, group, pids[1])]
        dist.broadcast_object_list(kept, src=0)
        if kept[0]:
            return
    raise AssertionError(f"nothing was kept in {ATTEMPTS} attempts")


def receive_halfway(data: torch.Tensor, group: dist.ProcessGroup) -> bool:
    works = [dist.irecv(data, 0, group=group) for _ in range(MESSAGES)]
    await_true(data[0].bool)
    os.kill(os.getpid(), signal.SIGSTOP)
    assert failures(works)
    return False


def send_halfway(data: torch.Tensor, group: dist.ProcessGroup, peer: int) -> bool:
    works = [dist.isend(data, 1, group=group) for _ in range(MESSAGES)]
    assert "Timed out after 1000 ms" in failures(works)[0]
    storage = StorageWeakRef(data.untyped_storage())
    del works
    data.set_(torch.empty(0))
    kept = not storage.expired()
    os.kill(peer, signal.SIGCONT)
    await_true(storage.expired)
    return kept


def failures(works: Sequence[dist.Work]) -> list[str]:
    found = []
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            found.append(str(error))
    return found


def await_true(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.001)


@pytest.mark.parametrize("hosts", HOSTS, ids=str)
@pytest.mark.parametrize("body", [check_equal_parts, check_parts_in_place])
@pytest.mark.parametrize("aggregated", [0, AGGREGATED])
def test_equal_parts(launch: Launcher, hosts: tuple[int, ...], body: Body, aggregated: int) -> None:
    run(launch, hosts, body, aggregated)


def test_gathered_by_host_is_for_equal_parts_on_all_ranks(launch: Launcher) -> None:
    run(launch, (0, 0, 1, 1), check_splits_on_one_rank, AGGREGATED)


@pytest.mark.parametrize(
    "body",
    [
        test_all_to_all.check_single,
        test_all_to_all.check_single_without_splits,
        test_all_gather.check_into_tensor,
        test_point_to_point.check_ring,
        test_priorities.check_opposite_orders,
        test_reductions.check_average,
        test_reductions.check_reduce_scatter,
        test_rooted.check_broadcast,
    ],
)
def test_collectives(launch: Launcher, body: Body) -> None:
    run(launch, (0, 0, 1, 1), body)


def test_sent_memory_outlives_its_operation(launch: Launcher) -> None:
    run(launch, (0, 1), check_sent_memory_outlives_its_operation, more=SMALL_BUFFERS)
