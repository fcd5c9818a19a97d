"""One field of some samples as rows of bits, which any dtype can be moved as."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_LENGTH_BYTES = torch.int64.itemsize
# Rows are picked in these, of the same size: torch has no index_select for every dtype.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


@dataclass(frozen=True)
class ColumnType:
    """What a column is like, apart from its samples.

    Attributes:
        dtype: Of the values.
        shape: Of one row.
        ragged: Whether a sample has any number of rows, instead of exactly one.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    ragged: bool = False

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        """For example ``torch.float32 [n, 3]``."""
        rows = "rows of each sample" if self.ragged else "n"
        return f"{self.dtype} [{', '.join([rows, *map(str, self.shape)])}]"


@dataclass(frozen=True, eq=False)
class Column:
    """One field.

    Attributes:
        type: What it is like.
        values: Contiguous; shape ``[rows, *type.shape]``.
        lengths: Rows of each sample, int64, shape ``[n]``; None if it is one each.
    """

    type: ColumnType
    values: torch.Tensor
    lengths: torch.Tensor | None = None

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.values if self.lengths is None else self.lengths)


def dense_column(values: torch.Tensor) -> Column:
    """Returns a column with one row for each sample."""
    return Column(ColumnType(values.dtype, tuple(values.shape[1:])), _plain(values))


def ragged_column(
    values: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor | None = None
) -> Column:
    """Returns a column with any number of rows for each sample.

    Args:
        values: Rows of all samples, shape ``[rows, …]``.
        lengths: Rows of each sample, shape ``[n]``.
        starts: Where each sample's rows begin, shape ``[n]``; None: one after the other.
    """
    whole = lengths.to(torch.int64)
    plain = _plain(values)
    if starts is not None:
        plain = _pick_runs(plain, starts.to(torch.int64), whole)
    return Column(ColumnType(values.dtype, tuple(values.shape[1:]), ragged=True), plain, whole)


def empty_column(type: ColumnType) -> Column:
    """Returns a column of no samples."""
    lengths = torch.empty(0, dtype=torch.int64) if type.ragged else None
    return Column(type, torch.empty(0, *type.shape, dtype=type.dtype), lengths)


def take(column: Column, places: torch.Tensor) -> Column:
    """Returns some of the samples, in the order of ``places``; int64, shape ``[m]``."""
    if column.lengths is None:
        return Column(column.type, _pick(column.values, places))
    lengths = column.lengths[places]
    starts = (column.lengths.cumsum(0) - column.lengths)[places]
    return Column(column.type, _pick_runs(column.values, starts, lengths), lengths)


def concatenate(columns: Sequence[Column]) -> Column:
    """Returns the samples of all columns, which must be of one type, one after the other."""
    first = columns[0]
    values = torch.cat([_bits(column.values) for column in columns]).view(first.values.dtype)
    lengths = [column.lengths for column in columns if column.lengths is not None]
    return Column(first.type, values, torch.cat(lengths) if lengths else None)


def sample_bytes(columns: Sequence[Column], samples: int) -> torch.Tensor:
    """Returns how many bytes :func:`pack` makes of each sample; int64, shape ``[samples]``."""
    sizes = torch.zeros(samples, dtype=torch.int64)
    for column in columns:
        if column.lengths is None:
            sizes += column.type.row_bytes
        else:
            sizes += _LENGTH_BYTES + column.lengths * column.type.row_bytes
    return sizes


def pack(columns: Sequence[Column]) -> torch.Tensor:
    """Returns all fields of some samples as bytes, uint8: first all lengths, then the values."""
    lengths = [_bytes(column.lengths) for column in columns if column.lengths is not None]
    return torch.cat([*lengths, *(_bytes(column.values) for column in columns)])


def unpack(types: Sequence[ColumnType], samples: int, packed: torch.Tensor) -> list[Column]:
    """Returns the columns that :func:`pack` was given.

    Args:
        types: Of the columns.
        samples: How many.
        packed: uint8, shape ``[bytes]``.

    Raises:
        ValueError: There are more bytes, or fewer, than the columns take.
    """
    reader = _Reader(packed)
    lengths = [reader.read(torch.int64, (samples,)) if each.ragged else None for each in types]
    columns = []
    for type, own in zip(types, lengths, strict=True):
        rows = samples if own is None else int(own.sum())
        columns.append(Column(type, reader.read(type.dtype, (rows, *type.shape)), own))
    reader.finish()
    return columns


class _Reader:
    """Goes through packed bytes."""

    def __init__(self, packed: torch.Tensor) -> None:
        self._packed = packed
        self._place = 0

    def read(self, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        end = self._place + math.prod(shape) * dtype.itemsize
        if end > len(self._packed):
            raise ValueError(f"{len(self._packed)} packed bytes end before byte {end}")
        # Copied: bytes in the midst of others need not lie where the dtype may.
        values = torch.empty(shape, dtype=dtype)
        _bytes(values).copy_(self._packed[self._place : end])
        self._place = end
        return values

    def finish(self) -> None:
        if self._place != len(self._packed):
            raise ValueError(f"{len(self._packed)} packed bytes, but {self._place} belong there")


def _plain(values: torch.Tensor) -> torch.Tensor:
    """The same values in memory as they are to be read, one after the other."""
    return values.detach().resolve_conj().resolve_neg().contiguous()


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(_BITS[values.dtype.itemsize])


def _pick(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return _bits(values).index_select(0, rows).view(values.dtype)


def _pick_runs(values: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Rows of samples that begin at ``starts``, copied in as few pieces as they lie in.

    Most of a batch stays where it is, in few pieces; index_select over all its rows takes 3 times
    as long.
    """
    if not len(starts):
        return values[:0]
    ends = starts + lengths
    breaks = starts[1:] != ends[:-1]
    is_edge = torch.ones(1, dtype=torch.bool)
    firsts = starts[torch.cat([is_edge, breaks])].tolist()
    lasts = ends[torch.cat([breaks, is_edge])].tolist()
    pieces = [_bits(values[first:last]) for first, last in zip(firsts, lasts, strict=True)]
    return torch.cat(pieces).view(values.dtype)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    # An empty tensor may have any stride, and view() asks for 1.
    return values.reshape(-1).view(torch.uint8) if values.numel() else values.new_empty(0).byte()
