"""Gradients through torch.distributed.nn: of strided inputs, expanded gradients, and subgroups."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_gradient

from freescale_pg import functional
from harness.data import assert_same_bits, numbers
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

COLUMNS = 3


def leaf(rows: int, rank: int) -> torch.Tensor:
    """A contiguous leaf whose transpose has ``rows`` rows, and is what a test sends."""
    return numbers((COLUMNS, rows), torch.float64, key=("leaf", rank)).requires_grad_()


def weights(rows: int, key: object) -> torch.Tensor:
    return numbers((rows, COLUMNS), torch.float64, key=("weights", key))


def assert_gradient(own: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert own.grad is not None, what
    torch.testing.assert_close(own.grad.t(), expected, msg=lambda text: f"{what}: {text}")


def check_transposed_exchange(rank: int, size: int) -> None:
    # Rank r weighs row s of what it receives, which rank s has sent, with row s of its weights.
    expected = torch.stack([weights(size, peer)[rank] for peer in range(size)])

    own = leaf(size, rank)
    received = with_gradient.all_to_all_single(
        torch.empty(size, COLUMNS, dtype=torch.float64), own.t()
    )
    (received * weights(size, rank)).sum().backward()
    assert_gradient(own, expected, "nn.all_to_all_single")

    own = leaf(size, rank)
    (functional.all_to_all_single(own.t()) * weights(size, rank)).sum().backward()
    assert_gradient(own, expected, "functional.all_to_all_single")

    own = leaf(size, rank)
    outputs = [torch.empty(1, COLUMNS, dtype=torch.float64) for _ in range(size)]
    pieces = with_gradient.all_to_all(outputs, list(own.t().split(1)))
    (torch.cat(pieces) * weights(size, rank)).sum().backward()
    assert_gradient(own, expected, "nn.all_to_all")


def check_transposed_gather(rank: int, size: int) -> None:
    expected = torch.stack(
        [weights(2 * size, peer)[2 * rank : 2 * rank + 2] for peer in range(size)]
    ).sum(dim=0)

    own = leaf(2, rank)
    gathered = torch.cat(with_gradient.all_gather(own.t()))
    (gathered * weights(2 * size, rank)).sum().backward()
    assert_gradient(own, expected, "nn.all_gather")

    own = leaf(2, rank)
    gathered = functional.all_gather_single(own.t())
    (gathered * weights(2 * size, rank)).sum().backward()
    assert_gradient(own, expected, "functional.all_gather_single")


def check_expanded_gradient(rank: int, size: int) -> None:
    """The gradient of a plain sum is one number, expanded with strides of zero."""
    own = torch.full((size, COLUMNS), float(rank)).requires_grad_()
    functional.all_to_all_single(own).sum().backward()
    functional.all_gather_single(own).sum().backward()
    functional.reduce_scatter_single(own).sum().backward()
    torch.cat(with_gradient.all_gather(own)).sum().backward()
    with_gradient.all_to_all_single(torch.empty_like(own), own).sum().backward()
    with_gradient.all_reduce(own).sum().backward()
    total = torch.full((size, COLUMNS), 1.0 + size + 1.0 + size + 1.0 + size)
    assert own.grad is not None
    assert_same_bits(own.grad, total, "sums of six collectives")


def check_subgroup(rank: int, size: int) -> None:
    """Group ranks and global ranks differ by one. (torch.distributed.nn.broadcast mixes them up on
    every backend, so it is not among these.)
    """
    group = dist.new_group([1, 2])
    if rank == 0:
        return
    own = torch.full((2,), float(rank)).requires_grad_()
    (with_gradient.all_to_all_single(torch.empty(2), own, group=group) * rank).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, torch.tensor([1.0, 2.0]), "all_to_all_single")

    own = torch.full((2,), float(rank)).requires_grad_()
    (torch.cat(with_gradient.all_gather(own, group=group)) * rank).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, torch.full((2,), 3.0), "all_gather")

    own = torch.full((2,), float(rank)).requires_grad_()
    (with_gradient.all_reduce(own, group=group) * rank).sum().backward()
    assert own.grad is not None
    assert_same_bits(own.grad, torch.full((2,), 3.0), "all_reduce")


def test_exchange_of_transposed_inputs(launch: Launcher) -> None:
    launch(check_transposed_exchange, 3)


def test_gather_of_transposed_inputs(launch: Launcher) -> None:
    launch(check_transposed_gather, 3)


def test_gradient_of_a_sum(launch: Launcher) -> None:
    launch(check_expanded_gradient, 3)


def test_in_a_subgroup(launch: Launcher) -> None:
    launch(check_subgroup, 3)
