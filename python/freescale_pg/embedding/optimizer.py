"""Optimizers that update some rows of a table.

Every operation is a single rounding of each element (IEEE 754), never a fused one whose use depends
on where an element lies. So a row's new value depends on nothing but the row, its gradient and the
settings: updated together with other rows or apart from them, it gets the same bits. That makes the
overlapped schedule exact.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch

# Per row and column, or one value per row.
StateShape: TypeAlias = Literal["element", "row"]


@runtime_checkable
class RowOptimizer(Protocol):
    """Updates rows from their gradients.

    Attributes:
        lr: Learning rate; may be changed between steps. Gradients that arrive later are applied
            with the rate of the step that they belong to.
    """

    lr: float

    def state(self) -> dict[str, StateShape]:
        """Returns name and shape of what is kept for each row; it begins as zeros."""
        ...

    def update(
        self,
        rows: torch.Tensor,
        gradients: torch.Tensor,
        state: dict[str, torch.Tensor],
        *,
        lr: float,
        step: int,
    ) -> None:
        """Updates rows and their state in place.

        Args:
            rows: Copies of some rows, shape ``[n, width]``.
            gradients: Of these rows, the same shape; may be overwritten.
            state: Copies of these rows' state; shape ``[n, width]`` or ``[n]``.
            lr: Learning rate.
            step: Number of the step that the gradients belong to, from 1.
        """
        ...


def describe(optimizer: RowOptimizer | None) -> str:
    """Returns what must be the same on all ranks, as text."""
    if type(optimizer).__repr__ is object.__repr__:
        # It names an address.
        return f"{type(optimizer).__qualname__}(lr={getattr(optimizer, 'lr', None)})"
    return repr(optimizer)


def _check(name: str, **values: float) -> None:
    for what, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}: {what} must be finite and not negative, got {value}")


@dataclass
class SGD:
    """Plain gradient descent: ``w -= lr · g``.

    Raises:
        ValueError: ``lr`` is negative or not finite.
    """

    lr: float

    def __post_init__(self) -> None:
        _check("SGD", lr=self.lr)

    def state(self) -> dict[str, StateShape]:
        """See :meth:`RowOptimizer.state`."""
        return {}

    def update(
        self,
        rows: torch.Tensor,
        gradients: torch.Tensor,
        state: dict[str, torch.Tensor],
        *,
        lr: float,
        step: int,
    ) -> None:
        """See :meth:`RowOptimizer.update`."""
        rows.sub_(gradients.mul_(lr))


@dataclass
class RowwiseAdagrad:
    """Adagrad with one accumulator per row: ``s += mean(g²); w -= lr · g / (√s + eps)``.

    As TorchRec's ``EXACT_ROWWISE_ADAGRAD`` (Gupta et al. 2014, arXiv 1402.3152, per row). Of a
    table that is cut by columns, every rank's part of a row has an accumulator of its own, over
    its own columns.

    Raises:
        ValueError: ``lr`` or ``eps`` is negative or not finite.
    """

    lr: float
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check("RowwiseAdagrad", lr=self.lr, eps=self.eps)

    def state(self) -> dict[str, StateShape]:
        """See :meth:`RowOptimizer.state`."""
        return {"adagrad_sum": "row"}

    def update(
        self,
        rows: torch.Tensor,
        gradients: torch.Tensor,
        state: dict[str, torch.Tensor],
        *,
        lr: float,
        step: int,
    ) -> None:
        """See :meth:`RowOptimizer.update`."""
        total = state["adagrad_sum"]
        total.add_(_row_sums(gradients * gradients).div_(gradients.shape[1]))
        rows.sub_(gradients.mul_(lr).div_(total.sqrt().add_(self.eps)[:, None]))


@dataclass
class Adam:
    """Adam on the rows that have a gradient; the moments of others stay, as ``SparseAdam`` does.

    Kingma and Ba 2015, arXiv 1412.6980. The number of the step in the correction of the bias counts
    all steps, not those of a row.

    Raises:
        ValueError: ``lr`` or ``eps`` is negative or not finite, or a beta is not in [0, 1).
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check("Adam", lr=self.lr, eps=self.eps)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"Adam: betas must be in [0, 1), got {self.betas}")

    def state(self) -> dict[str, StateShape]:
        """See :meth:`RowOptimizer.state`."""
        return {"adam_mean": "element", "adam_square": "element"}

    def update(
        self,
        rows: torch.Tensor,
        gradients: torch.Tensor,
        state: dict[str, torch.Tensor],
        *,
        lr: float,
        step: int,
    ) -> None:
        """See :meth:`RowOptimizer.update`."""
        mean, square = state["adam_mean"], state["adam_square"]
        first, second = self.betas
        square.mul_(second).add_((gradients * gradients).mul_(1 - second))
        mean.mul_(first).add_(gradients.mul_(1 - first))
        size = lr * math.sqrt(1 - second**step) / (1 - first**step)
        rows.sub_((mean * size).div_(square.sqrt().add_(self.eps)))


def _row_sums(values: torch.Tensor) -> torch.Tensor:
    """Adds up each row; shape ``[n, width]`` to ``[n]``. ``values`` is overwritten.

    By folding, whose order of additions depends on the width alone; ``torch.sum`` may choose
    another one for another number of rows.
    """
    width = values.shape[1]
    while width > 1:
        half = width // 2
        values[:, :half] += values[:, width - half : width]
        width -= half
    return values[:, 0]
