"""Inputs and outputs that share memory: in place where that is defined, an error elsewhere."""

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

Error = (RuntimeError, ValueError)
# Floats: inline, and several chunks.
COUNTS = [5, 70_000]


def part(count: int, rank: int, turn: int) -> torch.Tensor:
    return arbitrary(count, key=("alias", count, rank, turn))


def check_gather_in_place(rank: int, size: int) -> None:
    for turn in range(60):
        count = COUNTS[turn % 10 == 0]
        output = poisoned(size * count)
        own = output[rank * count : (rank + 1) * count]
        own.copy_(part(count, rank, turn))
        dist.all_gather_into_tensor(output, own)
        expected = torch.cat([part(count, peer, turn) for peer in range(size)])
        assert_same_bits(output, expected, (count, turn))


def check_gather_from_a_wrong_slot(rank: int, size: int) -> None:
    """Every rank's input is the first slot: right on rank 0 alone."""
    for count in COUNTS:
        group = dist.new_group()
        output = poisoned(size * count)
        output[:count].copy_(part(count, rank, 0))
        with pytest.raises(Error, match="overlap"):
            dist.all_gather_into_tensor(output, output[:count], group=group)
            dist.barrier(group)
        dist.barrier()


def check_views_of_one_storage(rank: int, size: int) -> None:
    """Every offset of a small input against a small output: right, or refused on all ranks."""
    count, begin = 3, 4
    accepted = []
    for offset in range(begin + size * count + 1):
        base = arbitrary(begin + (size + 1) * count + 1, key=("base", offset, rank))
        given = base[offset : offset + count]
        output = base[begin : begin + size * count]
        parts = [
            arbitrary(len(base), key=("base", offset, peer))[offset : offset + count]
            for peer in range(size)
        ]
        group = dist.new_group()
        try:
            dist.all_gather_into_tensor(output, given, group=group)
            dist.barrier(group)
        except Error as error:
            assert "overlap" in str(error), error
        else:
            assert_same_bits(output, torch.cat(parts), offset)
            accepted.append(offset)
        dist.destroy_process_group(group)
        dist.barrier()
    outside = [*range(begin - count + 1), begin + size * count]
    assert accepted == outside, "the own slot differs by rank, so no shared offset is in place"


def check_one_output_for_all(rank: int, size: int) -> None:
    group = dist.new_group()
    with pytest.raises(Error, match="overlap"):
        dist.all_gather([torch.empty(3)] * size, torch.ones(3), group=group)
    total = torch.ones(1)
    dist.all_reduce(total, group=group)
    assert float(total) == size


def test_gather_in_place(launch: Launcher) -> None:
    launch(check_gather_in_place, 3)


def test_gather_from_a_slot_of_another_rank(launch: Launcher) -> None:
    launch(check_gather_from_a_wrong_slot, 3)


def test_all_views_of_one_storage(launch: Launcher) -> None:
    launch(check_views_of_one_storage, 2)


def test_one_tensor_as_every_output(launch: Launcher) -> None:
    launch(check_one_output_for_all, 2)
