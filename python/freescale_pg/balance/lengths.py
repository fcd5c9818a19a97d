"""Columns of lengths, which are read where needed and never copied as a whole."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from freescale_pg.balance.cost import first_impossible


class ArrowColumn(Protocol):
    """What is used of ``pyarrow.Array`` and ``pyarrow.ChunkedArray``."""

    @property
    def null_count(self) -> int:
        """Number of missing values."""

    def to_numpy(self) -> npt.NDArray[Any]:
        """Returns the values."""


Lengths: TypeAlias = Sequence[float] | npt.NDArray[Any] | torch.Tensor | ArrowColumn

# Every length of a column up to this size is looked at when a sampler is made: 0.1 s.
_CHECKED_WHOLE = 1 << 24
# Up to this size a fingerprint covers every length: 10 ms. Of longer columns it covers so many
# blocks of neighbours: each is one read where the column is a file that is not in memory.
_FINGERPRINTED_WHOLE = 1 << 20
_BLOCKS = 64
_BLOCK = 1 << 10
_PIECE = 1 << 20


@dataclass(frozen=True)
class Fingerprint:
    """What tells two columns apart.

    Attributes:
        samples: Number of lengths.
        total: Sum of the lengths that were looked at.
        digest: Of the values that were looked at, 16 hexadecimal digits. Columns of equal values
            have equal digests, whatever their types.
    """

    samples: int
    total: float
    digest: str

    def __str__(self) -> str:
        return f"{self.samples} samples, sum {self.total:.15g}, digest {self.digest}"


class LengthColumn:
    """The lengths of a data set's samples.

    Args:
        lengths: A list or tuple, a NumPy array (memory-mapped ones stay on disk), a tensor (one on
            a GPU is copied to the host), or an Arrow array or chunked array; one-dimensional, of
            integers or floating-point numbers.

    Raises:
        TypeError: Not numbers.
        ValueError: Empty, not one-dimensional, with missing values, or with a length that is
            negative or not finite.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._chunks = [_checked_array(chunk) for chunk in _arrays(lengths)]
        self._ends = np.cumsum([len(chunk) for chunk in self._chunks], dtype=np.int64)
        self._starts = self._ends - [len(chunk) for chunk in self._chunks]
        if len(self) == 0:
            raise ValueError("lengths is empty: there are no samples")
        self._check()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def gather(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Returns the lengths of some samples; float64, shape of ``indices``.

        Raises:
            ValueError: One is negative or not finite.
        """
        if len(self._chunks) == 1:
            values = self._chunks[0][indices].astype(np.float64)
        else:
            values = np.empty(len(indices), dtype=np.float64)
            chunks = np.searchsorted(self._ends, indices, side="right")
            for number in np.unique(chunks):
                here = chunks == number
                values[here] = self._chunks[number][indices[here] - self._starts[number]]
        _check_values(values, indices)
        return values

    def sample(self) -> npt.NDArray[np.int64]:
        """Returns the places of the lengths that a fingerprint covers; int64, ascending.

        All of up to 2²⁰ lengths; of longer columns 64 blocks of 1024 from the first to the last.
        """
        if len(self) <= _FINGERPRINTED_WHOLE:
            return np.arange(len(self), dtype=np.int64)
        starts = np.arange(_BLOCKS, dtype=np.int64) * (len(self) - _BLOCK) // (_BLOCKS - 1)
        places: npt.NDArray[np.int64] = (starts[:, None] + np.arange(_BLOCK)).ravel()
        return places

    def fingerprint(self) -> Fingerprint:
        """Returns what changes when the lengths change."""
        values = self.gather(self.sample())
        digest = hashlib.blake2b(values.astype("<f8").tobytes(), digest_size=8)
        return Fingerprint(len(self), float(values.sum()), digest.hexdigest())

    def _check(self) -> None:
        if len(self) > _CHECKED_WHOLE:
            self.gather(self.sample())
            return
        for start in range(0, len(self), _PIECE):
            self.gather(np.arange(start, min(start + _PIECE, len(self))))


def _arrays(lengths: Lengths) -> Iterator[npt.NDArray[Any]]:
    """Yields the parts of a column as arrays that share its memory where that is possible."""
    if isinstance(lengths, torch.Tensor):
        yield lengths.detach().cpu().numpy()
    elif hasattr(lengths, "null_count"):
        if lengths.null_count:
            raise ValueError(f"lengths has {lengths.null_count} missing values")
        for chunk in getattr(lengths, "chunks", [lengths]):
            yield np.asarray(chunk)
    else:
        yield np.asarray(lengths)


def _checked_array(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.ndim != 1:
        raise ValueError(f"lengths must have one dimension, got shape {values.shape}")
    if values.dtype.kind not in "iuf" and len(values):
        raise TypeError(f"lengths must be numbers, got dtype {values.dtype}")
    return values


def _check_values(values: npt.NDArray[np.float64], indices: npt.NDArray[np.int64]) -> None:
    place = first_impossible(values)
    if place is not None:
        raise ValueError(
            f"lengths[{indices[place]}] is {values[place]}; lengths must be finite and not negative"
        )
