"""all_gather in all its forms."""

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

SHAPES = [(4, 3), (1,), (0, 5), (), (2, 3, 5)]


def contribution(shape: tuple[int, ...], rank: int, salt: object = "") -> torch.Tensor:
    return arbitrary(shape, key=("gather", shape, rank, salt))


def check_list(rank: int, size: int) -> None:
    for shape in SHAPES:
        outputs = [poisoned(shape) for _ in range(size)]
        dist.all_gather(outputs, contribution(shape, rank))
        for peer in range(size):
            assert_same_bits(outputs[peer], contribution(shape, peer), f"{shape}, rank {peer}")


def check_uneven_list(rank: int, size: int) -> None:
    shapes = [((3 * peer + 2) % 5, 2) for peer in range(size)]
    outputs = [poisoned(shape) for shape in shapes]
    dist.all_gather(outputs, contribution(shapes[rank], rank))
    for peer in range(size):
        assert_same_bits(outputs[peer], contribution(shapes[peer], peer), f"from rank {peer}")


def check_into_tensor(rank: int, size: int) -> None:
    for shape in SHAPES:
        if shape:
            expected = torch.cat([contribution(shape, peer) for peer in range(size)])
            output = poisoned((size * shape[0], *shape[1:]))
            dist.all_gather_into_tensor(output, contribution(shape, rank))
            assert_same_bits(output, expected, shape)


def check_into_stack(rank: int, size: int) -> None:
    for shape in SHAPES:
        output = poisoned((size, *shape))
        dist.all_gather_into_tensor(output, contribution(shape, rank))
        expected = torch.stack([contribution(shape, peer) for peer in range(size)])
        assert_same_bits(output, expected, shape)


def check_coalesced(rank: int, size: int) -> None:
    shapes = [(4,), (0, 3), (3, 2)]
    outputs = [poisoned((size * shape[0], *shape[1:])) for shape in shapes]
    with dist._coalescing_manager(async_ops=True) as manager:
        for number, output in enumerate(outputs):
            dist.all_gather_into_tensor(output, contribution(shapes[number], rank, number))
    manager.wait()
    for number, output in enumerate(outputs):
        parts = [contribution(shapes[number], peer, number) for peer in range(size)]
        assert_same_bits(output, torch.cat(parts), f"tensor {number}")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_list(launch: Launcher, size: int) -> None:
    launch(check_list, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [2, 3, 5])
def test_list_of_different_sizes(launch: Launcher, size: int) -> None:
    launch(check_uneven_list, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_into_tensor(launch: Launcher, size: int) -> None:
    launch(check_into_tensor, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [1, 2, 5])
def test_into_stacked_tensor(launch: Launcher, size: int) -> None:
    launch(check_into_stack, size)


@pytest.mark.parametrize("size", [1, 3])
def test_coalesced(launch: Launcher, size: int) -> None:
    launch(check_coalesced, size)
