"""all_to_all and all_to_all_single against tables of which rank sends how much to which."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

# Rows that rank `sender` sends to rank `receiver`, of `size` ranks.
PATTERNS = {
    "equal": lambda sender, receiver, size: 4,
    "ragged": lambda sender, receiver, size: (3 * sender + 2 * receiver + 1) % 5,
    "mostly zero": lambda sender, receiver, size: 7 if receiver == (sender + 1) % size else 0,
    "one sends": lambda sender, receiver, size: 2 + receiver if sender == 0 else 0,
    "one receives": lambda sender, receiver, size: 2 + sender if receiver == size - 1 else 0,
    "each to itself": lambda sender, receiver, size: 3 if sender == receiver else 0,
    "nothing": lambda sender, receiver, size: 0,
}
COLUMNS = 3


def rows_of(pattern: str, sender: int, receiver: int, size: int) -> int:
    return PATTERNS[pattern](sender, receiver, size)


def piece(pattern: str, sender: int, receiver: int, size: int) -> torch.Tensor:
    shape = (rows_of(pattern, sender, receiver, size), COLUMNS)
    return arbitrary(shape, key=(pattern, sender, receiver))


def check_single(rank: int, size: int) -> None:
    for pattern in PATTERNS:
        outgoing = [piece(pattern, rank, peer, size) for peer in range(size)]
        expected = [piece(pattern, peer, rank, size) for peer in range(size)]
        output = poisoned((sum(map(len, expected)), COLUMNS))
        work = dist.all_to_all_single(
            output,
            torch.cat(outgoing),
            [len(part) for part in expected],
            [len(part) for part in outgoing],
        )
        assert work is None
        assert_same_bits(output, torch.cat(expected), pattern)


def check_single_without_splits(rank: int, size: int) -> None:
    outgoing = [piece("equal", rank, peer, size) for peer in range(size)]
    expected = torch.cat([piece("equal", peer, rank, size) for peer in range(size)])
    output = poisoned(tuple(expected.shape))
    dist.all_to_all_single(output, torch.cat(outgoing))
    assert_same_bits(output, expected, "no splits on any rank")

    # The same exchange, described with splits on one rank and without on the others.
    splits = [4] * size if rank == 0 else None
    output = poisoned(tuple(expected.shape))
    dist.all_to_all_single(output, torch.cat(outgoing), splits, splits)
    assert_same_bits(output, expected, "splits on rank 0 only")


def check_list(rank: int, size: int) -> None:
    for pattern in PATTERNS:
        expected = [piece(pattern, peer, rank, size) for peer in range(size)]
        outputs = [poisoned(tuple(part.shape)) for part in expected]
        dist.all_to_all(outputs, [piece(pattern, rank, peer, size) for peer in range(size)])
        for peer in range(size):
            assert_same_bits(outputs[peer], expected[peer], f"{pattern}, from rank {peer}")


def check_list_of_shapes(rank: int, size: int) -> None:
    def shaped(sender: int, receiver: int) -> torch.Tensor:
        shape = [(2, 3), (5,), (), (1, 2, 2)][(sender + 2 * receiver) % 4]
        return arbitrary(shape, torch.int64, key=("shape", sender, receiver))

    outputs = [poisoned(tuple(shaped(peer, rank).shape), torch.int64) for peer in range(size)]
    dist.all_to_all(outputs, [shaped(rank, peer) for peer in range(size)])
    for peer in range(size):
        assert_same_bits(outputs[peer], shaped(peer, rank), f"from rank {peer}")


def check_kinds_of_splits(rank: int, size: int) -> None:
    """Whatever counts as an integer in Python: read right, or refused."""
    arriving = [rows_of("ragged", peer, rank, size) for peer in range(size)]
    leaving = [rows_of("ragged", rank, peer, size) for peer in range(size)]
    given = torch.cat([piece("ragged", rank, peer, size) for peer in range(size)])
    expected = torch.cat([piece("ragged", peer, rank, size) for peer in range(size)])
    makers = [
        list,
        tuple,
        torch.Size,
        lambda splits: [np.int32(rows) for rows in splits],
        lambda splits: [np.int64(rows) for rows in splits],
        lambda splits: [torch.tensor(rows) for rows in splits],
        lambda splits: list(torch.tensor(splits, dtype=torch.int32)),
    ]
    for number, make in enumerate(makers):
        output = poisoned(tuple(expected.shape))
        try:
            dist.all_to_all_single(output, given, make(arriving), make(leaving))
        except TypeError:
            assert number > 2
        else:
            assert_same_bits(output, expected, number)


def check_id_exchange(rank: int, size: int) -> None:
    """What a sharded embedding does in each step: counts, then ids, then vectors back."""
    counts = torch.tensor([(rank + 2 * peer) % 4 for peer in range(size)])
    arriving = poisoned(size, torch.int64)
    dist.all_to_all_single(arriving, counts)
    expected = torch.tensor([(peer + 2 * rank) % 4 for peer in range(size)])
    assert_same_bits(arriving, expected, "counts")

    ids = torch.arange(int(counts.sum())) + 1000 * rank
    asked = poisoned(int(arriving.sum()), torch.int64)
    dist.all_to_all_single(asked, ids, arriving.tolist(), counts.tolist())
    vectors = asked.float().unsqueeze(1).expand(-1, 8) * 2
    answers = poisoned((len(ids), 8))
    dist.all_to_all_single(answers, vectors.contiguous(), counts.tolist(), arriving.tolist())
    assert_same_bits(answers, ids.float().unsqueeze(1).expand(-1, 8) * 2, "vectors")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_single_by_splits(launch: Launcher, size: int) -> None:
    launch(check_single, size)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_single_without_splits(launch: Launcher, size: int) -> None:
    launch(check_single_without_splits, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_list(launch: Launcher, size: int) -> None:
    launch(check_list, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [2, 4])
def test_list_of_different_shapes(launch: Launcher, size: int) -> None:
    launch(check_list_of_shapes, size)


@pytest.mark.parametrize("size", [2, 4])
def test_ids_out_and_vectors_back(launch: Launcher, size: int) -> None:
    launch(check_id_exchange, size)


@pytest.mark.parametrize("size", [2, 3])
def test_kinds_of_splits(launch: Launcher, size: int) -> None:
    launch(check_kinds_of_splits, size)
