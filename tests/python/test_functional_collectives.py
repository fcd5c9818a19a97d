"""torch's functional collectives and the autograd forms of torch.distributed.nn."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.distributed.nn.functional as with_gradient

from harness.data import assert_same_bits
from harness.launch import Launcher


def ranks(size: int) -> torch.Tensor:
    return torch.arange(float(size))


def check_functional(rank: int, size: int) -> None:
    group = dist.group.WORLD
    own = torch.full((2,), float(rank))
    total = size * (size - 1) / 2
    assert_same_bits(
        collectives.all_reduce(own, "sum", group) + 0, torch.full((2,), total), "all_reduce"
    )
    assert_same_bits(
        collectives.all_gather_tensor(own, 0, group) + 0, ranks(size).repeat_interleave(2), "gather"
    )
    assert_same_bits(
        collectives.reduce_scatter_tensor(ranks(size), "sum", 0, group) + 0,
        torch.tensor([float(rank * size)]),
        "reduce_scatter",
    )
    assert_same_bits(
        collectives.all_to_all_single(torch.full((size,), float(rank)), None, None, group) + 0,
        ranks(size),
        "all_to_all_single",
    )
    assert_same_bits(
        collectives.broadcast(own, size - 1, group) + 0, torch.full((2,), size - 1.0), "broadcast"
    )


def check_coalesced_functional(rank: int, size: int) -> None:
    group = dist.group.WORLD
    own = [torch.full((2,), float(rank)), torch.full((3,), float(rank))]
    total = size * (size - 1) / 2
    for number, summed in enumerate(collectives.all_reduce_coalesced(own, "sum", group)):
        assert_same_bits(summed + 0, torch.full((number + 2,), total), "all_reduce_coalesced")
    for number, joined in enumerate(collectives.all_gather_into_tensor_coalesced(own, group)):
        expected = ranks(size).repeat_interleave(number + 2)
        assert_same_bits(joined + 0, expected, "all_gather_into_tensor_coalesced")
    scattered = collectives.reduce_scatter_tensor_coalesced(
        [ranks(size), ranks(size) + 1], "sum", [0, 0], group
    )
    for number, part in enumerate(scattered):
        expected = torch.tensor([float((rank + number) * size)])
        assert_same_bits(part + 0, expected, "reduce_scatter_tensor_coalesced")


def check_functional_gradient(rank: int, size: int) -> None:
    group = dist.group.WORLD
    own = torch.full((size,), float(rank)).requires_grad_()
    shares = [1] * size
    received = collectives.all_to_all_single_autograd(own, shares, shares, group)
    (received * (rank + 1)).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, ranks(size) + 1, "all_to_all_single_autograd")

    own = torch.ones(2, requires_grad=True)
    (collectives.all_gather_tensor_autograd(own, 0, group) * (rank + 1)).sum().backward()
    assert own.grad is not None
    assert_same_bits(
        own.grad, torch.full((2,), size * (size + 1) / 2), "all_gather_tensor_autograd"
    )

    own = torch.ones(size, requires_grad=True)
    part = collectives.reduce_scatter_tensor_autograd(own, "sum", 0, group)
    (part * (rank + 1)).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, ranks(size) + 1, "reduce_scatter_tensor_autograd")


def check_nn_functional(rank: int, size: int) -> None:
    own = torch.full((size,), float(rank)).requires_grad_()
    received = with_gradient.all_to_all_single(torch.empty(size), own)
    (received * (rank + 1)).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, ranks(size) + 1, "all_to_all_single")

    own = torch.ones(2, requires_grad=True)
    (with_gradient.all_reduce(own) * (rank + 1)).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, torch.full((2,), size * (size + 1) / 2), "all_reduce")

    own = torch.ones(2, requires_grad=True)
    with_gradient.broadcast(own, 0).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, torch.full((2,), float(size) if rank == 0 else 0.0), "broadcast")

    own = torch.ones(2, requires_grad=True)
    parts = [own * (peer + 1) for peer in range(size)]
    (with_gradient.reduce_scatter(torch.empty(2), parts) * (rank + 1)).sum().backward()
    assert own.grad is not None
    squares = sum((peer + 1) ** 2 for peer in range(size))
    assert_same_bits(own.grad, torch.full((2,), float(squares)), "reduce_scatter")


def check_nn_lists(rank: int, size: int) -> None:
    own = torch.full((2,), float(rank)).requires_grad_()
    gathered = with_gradient.all_gather(own)
    torch.stack(list(gathered)).mul(rank + 1).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, torch.full((2,), size * (size + 1) / 2), "all_gather")

    pieces = [torch.full((peer + 1,), float(rank), requires_grad=True) for peer in range(size)]
    outputs = [torch.empty(rank + 1) for _ in range(size)]
    received = with_gradient.all_to_all(outputs, pieces)
    sum(part.sum() * (rank + 1) for part in received).backward()
    for peer, piece in enumerate(pieces):
        assert piece.grad is not None
        assert_same_bits(piece.grad, torch.full((peer + 1,), peer + 1.0), f"all_to_all {peer}")


@pytest.mark.parametrize("size", [1, 3])
def test_functional(launch: Launcher, size: int) -> None:
    launch(check_functional, size)


def test_coalesced_functional(launch: Launcher) -> None:
    launch(check_coalesced_functional, 3)


@pytest.mark.parametrize("size", [1, 3])
def test_functional_with_gradient(launch: Launcher, size: int) -> None:
    launch(check_functional_gradient, size)


@pytest.mark.parametrize("size", [2, 3])
def test_nn_functional(launch: Launcher, size: int) -> None:
    launch(check_nn_functional, size)


@pytest.mark.freescale_only
def test_nn_functional_of_lists(launch: Launcher) -> None:
    launch(check_nn_lists, 3)
