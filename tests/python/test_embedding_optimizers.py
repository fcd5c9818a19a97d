"""Optimizers of rows: what they calculate, and that a row's bits depend on no other row."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from freescale_pg.embedding import SGD, Adam, RowOptimizer, RowwiseAdagrad
from harness.data import assert_same_bits, numbers

STEPS = 6
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
MAKERS: dict[str, Callable[[], RowOptimizer]] = {
    "SGD": lambda: SGD(0.3),
    "RowwiseAdagrad": lambda: RowwiseAdagrad(0.3, eps=1e-3),
    "Adam": lambda: Adam(0.3, betas=(0.8, 0.95), eps=1e-3),
}


def new_state(optimizer: RowOptimizer, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        name: torch.zeros_like(rows if shape == "element" else rows[:, 0])
        for name, shape in optimizer.state().items()
    }


def train_together(
    optimizer: RowOptimizer, rows: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """All rows get a gradient in every step, and all are updated at once."""
    rows, state = rows.clone(), new_state(optimizer, rows)
    for step in range(1, STEPS + 1):
        gradients = gradient_of(rows.shape, rows.dtype, step)
        optimizer.update(rows, gradients, state, lr=optimizer.lr / step, step=step)
    return rows, state


def train_apart(
    optimizer: RowOptimizer, rows: torch.Tensor, chance: random.Random
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The same, but in each step the rows are updated in parts, drawn anew and in any order."""
    rows, state = rows.clone(), new_state(optimizer, rows)
    for step in range(1, STEPS + 1):
        gradients = gradient_of(rows.shape, rows.dtype, step)
        order = chance.sample(range(len(rows)), len(rows))
        while order:
            count = chance.randint(1, len(order))
            part, order = torch.tensor(order[:count]), order[count:]
            some, own = rows[part], {name: kept[part] for name, kept in state.items()}
            optimizer.update(some, gradients[part], own, lr=optimizer.lr / step, step=step)
            rows[part] = some
            for name, changed in own.items():
                state[name][part] = changed
    return rows, state


def gradient_of(shape: torch.Size, dtype: torch.dtype, step: int) -> torch.Tensor:
    return numbers(tuple(shape), dtype, key=("gradient", step))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MAKERS)
def test_the_bits_of_a_row_do_not_depend_on_the_rows_updated_with_it(
    name: str, dtype: torch.dtype
) -> None:
    chance = random.Random(name)
    for width in [*range(1, 20), 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 130]:
        rows = numbers((chance.randint(2, 23), width), dtype, key=("rows", width))
        together, state = train_together(MAKERS[name](), rows)
        apart, state_apart = train_apart(MAKERS[name](), rows, chance)
        assert_same_bits(apart, together, f"width {width}")
        for key, kept in state.items():
            assert_same_bits(state_apart[key], kept, f"{key}, width {width}")


def torch_result(make: Callable[..., Any], rows: torch.Tensor, *, sparse: bool) -> torch.Tensor:
    parameter = torch.nn.Parameter(rows.clone())
    optimizer = make([parameter])
    for step in range(1, STEPS + 1):
        optimizer.param_groups[0]["lr"] = 0.3 / step
        gradients = gradient_of(rows.shape, rows.dtype, step)
        parameter.grad = gradients.to_sparse(1) if sparse else gradients
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sgd_is_that_of_torch(dtype: torch.dtype) -> None:
    rows = numbers((9, 7), dtype, key=("rows",))
    expected = torch_result(lambda p: torch.optim.SGD(p, lr=0.3), rows, sparse=False)
    torch.testing.assert_close(train_together(MAKERS["SGD"](), rows)[0], expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adam_is_the_sparse_adam_of_torch(dtype: torch.dtype) -> None:
    rows = numbers((9, 7), dtype, key=("rows",))
    expected = torch_result(
        lambda p: torch.optim.SparseAdam(p, lr=0.3, betas=(0.8, 0.95), eps=1e-3), rows, sparse=True
    )
    torch.testing.assert_close(train_together(MAKERS["Adam"](), rows)[0], expected)


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 130])
def test_rowwise_adagrad_follows_its_formula(width: int) -> None:
    rows = numbers((9, width), torch.float64, key=("rows",))
    total, expected = torch.zeros(9, dtype=torch.float64), rows.clone()
    for step in range(1, STEPS + 1):
        gradients = gradient_of(rows.shape, rows.dtype, step)
        total += gradients.square().mean(dim=1)
        expected -= 0.3 / step * gradients / (total.sqrt() + 1e-3)[:, None]
    trained, state = train_together(MAKERS["RowwiseAdagrad"](), rows)
    torch.testing.assert_close(trained, expected)
    torch.testing.assert_close(state["adagrad_sum"], total)


def test_what_is_no_number_is_refused() -> None:
    for make in (SGD, RowwiseAdagrad, Adam):
        with pytest.raises(ValueError, match="lr must be finite and not negative, got -1"):
            make(-1)
    with pytest.raises(ValueError, match="eps must be finite and not negative, got nan"):
        RowwiseAdagrad(0.1, eps=float("nan"))
    with pytest.raises(ValueError, match=r"betas must be in \[0, 1\), got \(0.9, 1.0\)"):
        Adam(0.1, betas=(0.9, 1.0))


def test_an_optimizer_of_torch_is_none_of_rows() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert not isinstance(optimizer, RowOptimizer)
    assert all(isinstance(make(), RowOptimizer) for make in MAKERS.values())
