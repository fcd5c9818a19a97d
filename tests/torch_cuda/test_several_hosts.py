"""CUDA tensors between ranks that count as on different hosts, over UCX and loopback."""

import importlib.util
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import test_collectives
from harness.data import arbitrary, assert_same_bits, poisoned
from harness.hosts import run_on_hosts
from ranks import Ranks
from stand_in import Gate

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libucx") is None, reason="no UCX: pip install libucx-cu12"
)

# Of three ranks; and of four, so that each has a neighbour and others.
THREE, FOUR = (0, 1, 2), (0, 0, 1, 1)


def run(
    run_ranks: Ranks, hosts: tuple[int, ...], body: Callable[..., None], submission: dict[str, str]
) -> None:
    run_ranks(
        len(hosts),
        run_on_hosts,
        hosts,
        body,
        init=False,
        # UCX's own part for CUDA would look for the driver's symbols, and is not needed.
        environment={"UCX_TLS": "tcp", "UCX_MODULES": "^cuda", **submission},
        checks_footprint=False,  # UCX stays
    )


def exchange_dtypes(rank: int, world_size: int) -> None:
    for dtype in (torch.float32, torch.bool):
        test_collectives.exchange_ragged(rank, world_size, dtype)


def exchange_large(rank: int, world_size: int) -> None:
    """Several chunks of the network, and of the device, for each."""
    count = 3 << 20
    given = [arbitrary(count, torch.uint8, key=(rank, peer)) for peer in range(world_size)]
    output = poisoned(count * world_size, torch.uint8).cuda()
    for _ in range(3):
        dist.all_to_all_single(output, torch.cat(given).cuda())
    for peer in range(world_size):
        expected = arbitrary(count, torch.uint8, key=(peer, rank))
        assert_same_bits(output[peer * count : (peer + 1) * count].cpu(), expected, peer)


def exchange_behind_gate(rank: int, world_size: int) -> None:
    """The host does not wait for streams, here or there; what comes has its place in the stream."""
    source = torch.cat([arbitrary(1000, key=(rank, peer)) for peer in range(world_size)])
    pinned, other = source.pin_memory(), poisoned(1000 * world_size).pin_memory()
    given = poisoned(1000 * world_size).cuda()
    output = poisoned(1000 * world_size).cuda()
    with Gate():
        given.copy_(pinned, non_blocking=True)
        work = dist.all_to_all_single(output, given, async_op=True)
        work.wait()
        given.copy_(other, non_blocking=True)  # only when it was sent
        assert not work.is_completed()
    expected = torch.cat([arbitrary(1000, key=(peer, rank)) for peer in range(world_size)])
    assert_same_bits(output.cpu(), expected, "behind a gate")


@pytest.mark.parametrize("hosts", [THREE, FOUR], ids=str)
@pytest.mark.parametrize(
    "body",
    [
        exchange_dtypes,
        exchange_large,
        exchange_behind_gate,
        test_collectives.gather_all,
        test_collectives.use_roots,
    ],
)
def test_collectives_between_hosts(
    run_ranks: Ranks, submission: dict[str, str], hosts: tuple[int, ...], body: Callable[..., None]
) -> None:
    run(run_ranks, hosts, body, submission)


def test_point_to_point_between_hosts(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run(run_ranks, (0, 1), test_collectives.send_and_receive, submission)
