"""Byte counts on both sides of every threshold of the transport."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

KIB = 1024
# Cache lines, the inline limit (4 KiB), the shared chunk (128 KiB) and several of them.
COUNTS = [
    *(0, 1, 7, 63, 64, 65),
    *(4 * KIB - 65, 4 * KIB - 64, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1),
    *(128 * KIB - 1, 128 * KIB, 128 * KIB + 1, 256 * KIB + 1),
    *(1024 * KIB, 5 * 1024 * KIB + 3),
]


def contents(count: int, *key: object) -> torch.Tensor:
    return arbitrary(count, torch.uint8, key=("size", *key))


def check_all_to_all(rank: int, size: int) -> None:
    for count in COUNTS:
        output = poisoned(size * count, torch.uint8)
        dist.all_to_all_single(output, torch.cat([contents(count, rank, p) for p in range(size)]))
        expected = torch.cat([contents(count, peer, rank) for peer in range(size)])
        assert_same_bits(output, expected, count)


def check_mixed_all_to_all(rank: int, size: int) -> None:
    """Small and large pieces in one exchange: each takes its own path."""
    for shift in range(len(COUNTS)):

        def count_of(sender: int, receiver: int, shift: int = shift) -> int:
            return COUNTS[(shift + 5 * sender + 7 * receiver) % len(COUNTS)]

        arriving = [count_of(peer, rank) for peer in range(size)]
        leaving = [count_of(rank, peer) for peer in range(size)]
        output = poisoned(sum(arriving), torch.uint8)
        pieces = [contents(count, rank, peer) for peer, count in enumerate(leaving)]
        dist.all_to_all_single(output, torch.cat(pieces), arriving, leaving)
        expected = [contents(count, peer, rank) for peer, count in enumerate(arriving)]
        assert_same_bits(output, torch.cat(expected), arriving)


def check_all_gather(rank: int, size: int) -> None:
    for count in COUNTS:
        output = poisoned(size * count, torch.uint8)
        dist.all_gather_into_tensor(output, contents(count, rank))
        expected = torch.cat([contents(count, peer) for peer in range(size)])
        assert_same_bits(output, expected, count)


def check_broadcast(rank: int, size: int) -> None:
    for count in COUNTS:
        root = count % size
        tensor = contents(count, root) if rank == root else poisoned(count, torch.uint8)
        dist.broadcast(tensor, root)
        assert_same_bits(tensor, contents(count, root), count)


def check_all_reduce(rank: int, size: int) -> None:
    for count in COUNTS:
        tensor = contents(count, rank)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        parts = torch.stack([contents(count, peer) for peer in range(size)])
        assert_same_bits(tensor, parts.amax(dim=0) if count else parts[0], count)


def check_send(rank: int, size: int) -> None:
    for count in COUNTS:
        if rank == 0:
            dist.send(contents(count, "sent"), 1)
        else:
            received = poisoned(count, torch.uint8)
            dist.recv(received, 0)
            assert_same_bits(received, contents(count, "sent"), count)


def check_misaligned(rank: int, size: int) -> None:
    """Buffers that begin at any byte: streaming stores need aligned ones and must cope."""
    for count in (100, 4 * KIB + 1, 300 * KIB):
        for offset in (1, 3, 33):
            base = poisoned(size * count + offset, torch.uint8)
            source = torch.cat([torch.zeros(offset, dtype=torch.uint8), contents(count, rank)])
            dist.all_gather_into_tensor(base[offset:], source[offset:])
            expected = torch.cat([contents(count, peer) for peer in range(size)])
            assert_same_bits(base[offset:], expected, (count, offset))
            assert_same_bits(base[:offset], poisoned(offset, torch.uint8), (count, offset))


def check_repeated(rank: int, size: int) -> None:
    """Hundreds in a row: rings wrap round, credits come back."""
    for number in range(600):
        count = COUNTS[number % (len(COUNTS) - 2)] // 8 * 8
        tensor = torch.full((count * size,), number % 251, dtype=torch.uint8)
        output = poisoned(count * size, torch.uint8)
        dist.all_to_all_single(output, tensor)
        assert torch.equal(output, tensor), f"exchange {number} of {count} bytes"


@pytest.mark.parametrize("size", [2, 3])
def test_all_to_all(launch: Launcher, size: int) -> None:
    launch(check_all_to_all, size)


@pytest.mark.parametrize("size", [2, 4])
def test_pieces_of_mixed_sizes(launch: Launcher, size: int) -> None:
    launch(check_mixed_all_to_all, size)


@pytest.mark.parametrize("size", [2, 3])
def test_all_gather(launch: Launcher, size: int) -> None:
    launch(check_all_gather, size)


@pytest.mark.parametrize("size", [2, 3])
def test_broadcast(launch: Launcher, size: int) -> None:
    launch(check_broadcast, size)


@pytest.mark.parametrize("size", [2, 3])
def test_all_reduce(launch: Launcher, size: int) -> None:
    launch(check_all_reduce, size)


def test_send(launch: Launcher) -> None:
    launch(check_send, 2)


def test_buffers_at_any_byte(launch: Launcher) -> None:
    launch(check_misaligned, 2)


@pytest.mark.parametrize("size", [2, 3])
def test_hundreds_in_a_row(launch: Launcher, size: int) -> None:
    launch(check_repeated, size)


def check_beyond_32_bits(rank: int, size: int) -> None:
    """A few rows, each of 64 KiB, that together have more bytes than an int counts."""
    rows, columns = 2**15 + 1, 2**16
    leaving, arriving = ([0, rows], [0, 0]) if rank == 0 else ([0, 0], [rows, 0])
    given = torch.zeros(sum(leaving), columns, dtype=torch.uint8)
    output = torch.empty(sum(arriving), columns, dtype=torch.uint8)
    marks = [0, rows // 2, rows - 2, rows - 1]
    for row in marks if rank == 0 else []:
        given[row] = contents(columns, "mark", row)
    dist.all_to_all_single(output, given, arriving, leaving)
    for row in marks if rank == 1 else []:
        assert_same_bits(output[row], contents(columns, "mark", row), row)


def available_bytes() -> int:
    words = Path("/proc/meminfo").read_text().split()
    return int(words[words.index("MemAvailable:") + 1]) * KIB


@pytest.mark.freescale_only
@pytest.mark.skipif(available_bytes() < 8 * 2**30, reason="needs 6 GiB of memory")
def test_beyond_32_bits(launch: Launcher) -> None:
    launch(check_beyond_32_bits, 2)
