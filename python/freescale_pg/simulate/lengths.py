"""Lengths of a data set's samples, drawn from a distribution or read from a file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class LengthDistribution(Protocol):
    """Where lengths are drawn from."""

    def draw(self, samples: int, seed: int) -> Integers:
        """Returns lengths in tokens; int64, shape ``[samples]``, 1 or more each."""


@dataclass(frozen=True)
class Zipf:
    """``P(k) ∝ k^-exponent`` for k ≥ 1; what is longer than ``longest`` is cut to it.

    Attributes:
        exponent: More than 1; smaller is a heavier tail.
        longest: Tokens.

    Raises:
        ValueError: A number is out of range.
    """

    exponent: float
    longest: int

    def __post_init__(self) -> None:
        if not 1 < self.exponent < math.inf:
            raise ValueError(f"the exponent of a Zipf law must be above 1, got {self.exponent}")
        _check_longest(self.longest)

    def draw(self, samples: int, seed: int) -> Integers:
        """Implements :class:`LengthDistribution`."""
        drawn = np.random.default_rng(seed).zipf(self.exponent, samples)
        lengths: Integers = np.minimum(drawn, self.longest).astype(np.int64)
        return lengths


@dataclass(frozen=True)
class Lognormal:
    """Logarithms of lengths are normal; what is longer than ``longest`` is cut to it.

    Attributes:
        median: Tokens.
        sigma: Standard deviation of the natural logarithms.
        longest: Tokens.

    Raises:
        ValueError: A number is out of range.
    """

    median: float
    sigma: float
    longest: int

    def __post_init__(self) -> None:
        if not 0 < self.median < math.inf:
            raise ValueError(f"the median length must be positive, got {self.median}")
        if not 0 <= self.sigma < math.inf:
            raise ValueError(f"sigma must be finite and not negative, got {self.sigma}")
        _check_longest(self.longest)

    @classmethod
    def fitted(cls, lengths: Integers) -> "Lognormal":
        """Returns the distribution whose logarithms have the mean and deviation of the lengths'."""
        logarithms = np.log(lengths[lengths > 0])
        if not len(logarithms):
            raise ValueError(f"none of the {len(lengths)} lengths is positive")
        median = math.exp(float(logarithms.mean()))
        return cls(median, float(logarithms.std()), int(lengths.max()))

    def draw(self, samples: int, seed: int) -> Integers:
        """Implements :class:`LengthDistribution`."""
        normal = np.random.default_rng(seed).standard_normal(samples)
        drawn = np.rint(self.median * np.exp(self.sigma * normal))
        lengths: Integers = np.clip(drawn, 1, self.longest).astype(np.int64)
        return lengths


def _check_longest(longest: int) -> None:
    if longest < 1:
        raise ValueError(f"the longest length must be 1 token or more, got {longest}")


def read_lengths(path: Path) -> Integers:
    """Reads lengths from a file.

    Args:
        path: A NumPy array of one dimension (``.npy``), or text with one length a line.

    Raises:
        OSError: It cannot be read.
        ValueError: It has something else in it; the message names the file and the value.
    """
    try:
        values = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, ndmin=1)
    except ValueError as error:
        raise ValueError(f"{path} does not hold one length a line: {error}") from None
    if values.ndim != 1 or not len(values):
        raise ValueError(f"{path} holds an array of shape {values.shape}, not one of lengths")
    if values.dtype.kind not in "iuf":
        raise ValueError(f"{path} holds {values.dtype}, not numbers")
    impossible = ~((values >= 0) & (values == np.floor(values)) & np.isfinite(values))
    if impossible.any():
        place = int(impossible.argmax())
        raise ValueError(f"{path}: length {place} is {values[place]}, not a number of tokens")
    return values.astype(np.int64)
