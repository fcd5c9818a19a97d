"""What ``freescale bench`` measures: cuts, layouts, and the check of every output."""

import pytest
import torch

from freescale_pg.bench.cells import OPS, Cell
from freescale_pg.bench.splits import equal_splits, ragged_splits
from freescale_pg.bench.workload import Workload


@pytest.mark.parametrize("world_size", range(1, 10))
@pytest.mark.parametrize("count", [0, 1, 16, 1021, 1 << 20])
def test_ragged_splits_keep_the_total_and_favour_low_ranks(count: int, world_size: int) -> None:
    splits = ragged_splits(count, world_size)
    assert len(splits) == world_size
    assert sum(splits) == count
    assert min(splits) >= 0
    if count >= 1 << 20 and world_size > 1:
        assert splits == sorted(splits, reverse=True)
        assert splits[0] > 1.3 * splits[-1]


def test_ragged_splits_are_fixed() -> None:
    assert ragged_splits(10, 2) == [6, 4]
    assert ragged_splits(22, 4) == [7, 6, 5, 4]


def test_equal_splits_refuse_a_rest() -> None:
    assert equal_splits(12, 3) == [4, 4, 4]
    with pytest.raises(ValueError, match="13 elements"):
        equal_splits(13, 3)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ragged_all_to_all_moves_as_much_as_the_equal_one(world_size: int) -> None:
    equal = Cell("all_to_all_single", 64 << 10, world_size)
    ragged = Cell("all_to_all_single_ragged", 64 << 10, world_size)
    assert ragged.total_bytes == equal.total_bytes
    assert ragged.input_bytes == equal.input_bytes
    for rank in range(world_size):
        sent = [ragged.layout(rank).input_splits[peer] for peer in range(world_size)]
        received = [ragged.layout(peer).output_splits[rank] for peer in range(world_size)]
        assert sent == received


def simulate(op: str, rank: int, world_size: int, count: int) -> torch.Tensor:
    """What ``op`` gives ``rank``, worked out from everybody's inputs without the layouts."""
    inputs = [Workload(Cell(op, count * 4, world_size), peer).input for peer in range(world_size)]
    match op:
        case "all_to_all_single":
            return torch.cat([each.chunk(world_size)[rank] for each in inputs])
        case "all_to_all_single_ragged":
            cuts = ragged_splits(count, world_size)
            return torch.cat([each.split(cuts)[rank] for each in inputs])
        case "all_gather_into_tensor":
            return torch.cat(inputs)
        case "all_reduce":
            return torch.stack(inputs).sum(0)
        case "reduce_scatter_tensor":
            return torch.stack(inputs).sum(0).chunk(world_size)[rank]
        case _:
            return inputs[0]


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("op", OPS)
def test_check_accepts_the_right_output_and_no_other(op: str, rank: int) -> None:
    count = 3 * 2048
    workload = Workload(Cell(op, count * 4, 3), rank)
    expected = simulate(op, rank, 3, count)
    workload.poison()
    if workload.layout.parts:
        assert not workload.is_correct()
        workload.output.copy_(expected)
        assert workload.is_correct()
        workload.output[-1] += 1
        assert not workload.is_correct()
    else:
        assert torch.equal(workload.output, expected)
