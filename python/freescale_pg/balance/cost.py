"""What it costs to process a sample, as a function of its length."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]

# Lengths of some samples, float64 of shape [n], to their costs, of the same shape: finite and not
# negative, in any unit, since only ratios count. All ranks must get the same numbers.
CostModel: TypeAlias = Callable[[FloatArray], npt.NDArray[Any]]


@dataclass(frozen=True)
class Linear:
    """A sample costs as much as it is long: embeddings, and layers that see one token at a time.

    Also the model for costs that are known already and given in the place of lengths.
    """

    def __call__(self, lengths: FloatArray) -> FloatArray:
        """Returns the lengths; float64, shape ``[n]``."""
        return lengths


@dataclass(frozen=True)
class Quadratic:
    """A sample of length L costs ``a·L + b·L²``: a transformer, whose attention is quadratic.

    Only ``b / a`` matters to the balance. By multiplications alone it is about 1 / (6·d) for a
    standard block of width d (12·d² per token outside attention, 2·L·d within; Kaplan et al. 2020,
    arXiv 2001.08361); on real machines, measure it with :func:`fit_cost`.

    Args:
        a: Cost of a token, in any unit.
        b: Cost of a pair of tokens, in the same unit.

    Raises:
        ValueError: One is negative or not finite, or both are zero.
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        usable = all(math.isfinite(value) and value >= 0 for value in (self.a, self.b))
        if not usable or self.a == self.b == 0:
            raise ValueError(
                f"Quadratic(a={self.a}, b={self.b}): both must be finite and not negative, and one"
                " of them positive"
            )

    def __call__(self, lengths: FloatArray) -> FloatArray:
        """Returns the costs; float64, shape ``[n]``."""
        # One operation at a time, each rounded as IEEE 754 says: the same bits on every machine.
        linear = self.a * lengths
        quadratic = self.b * (lengths * lengths)
        return linear + quadratic


def evaluate(model: CostModel, lengths: FloatArray, indices: npt.NDArray[np.int64]) -> FloatArray:
    """Returns the costs of samples, checked.

    Args:
        model: From lengths to costs.
        lengths: Of the samples, shape ``[n]``.
        indices: Where the samples lie in the data set, shape ``[n]``; for messages.

    Raises:
        ValueError: The model gives another shape, or a cost that is negative or not finite; the
            message names the sample, its length and its cost.
    """
    costs = np.asarray(model(lengths), dtype=np.float64)
    if costs.shape != lengths.shape:
        raise ValueError(
            f"cost_model returned shape {costs.shape} for lengths of shape {lengths.shape}"
        )
    place = first_impossible(costs)
    if place is not None:
        raise ValueError(
            f"cost_model gives {costs[place]} for sample {indices[place]} of length"
            f" {lengths[place]:g}; costs must be finite and not negative"
        )
    return costs


def first_impossible(values: FloatArray) -> int | None:
    """Returns the place of the first value that is negative or not finite; None: all are fine."""
    impossible = ~(np.isfinite(values) & (values >= 0))
    return int(impossible.argmax()) if impossible.any() else None
