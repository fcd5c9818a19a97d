"""What a batch may consist of, and the columns that each kind of it is moved as."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from freescale_pg.balance.online.columns import (
    Column,
    ColumnType,
    concatenate,
    dense_column,
    ragged_column,
)
from freescale_pg.balance.online.jagged import Jagged

_TORCHREC = "torchrec.sparse.jagged_tensor"
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Leaf(Protocol):
    """One field of a batch without its samples; its ``repr`` is the same on ranks that agree."""

    @property
    def types(self) -> tuple[ColumnType, ...]:
        """Of the columns that it is moved as."""

    def put_together(self, columns: Sequence[Column]) -> object:
        """Makes the field of columns of these types, with any samples."""

    def __str__(self) -> str:
        """For messages."""


@dataclass(frozen=True)
class AbsentLeaf:
    """None, which stays what it is."""

    types: tuple[ColumnType, ...] = ()

    def put_together(self, columns: Sequence[Column]) -> object:
        """Returns None."""
        return None

    def __str__(self) -> str:
        return "None"


@dataclass(frozen=True)
class TensorLeaf:
    """A tensor with a row for each sample."""

    type: ColumnType

    @property
    def types(self) -> tuple[ColumnType, ...]:
        """One column."""
        return (self.type,)

    def put_together(self, columns: Sequence[Column]) -> object:
        """Returns a tensor."""
        return columns[0].values

    def __str__(self) -> str:
        return f"tensor {self.type}"


@dataclass(frozen=True)
class JaggedLeaf:
    """A :class:`Jagged`."""

    type: ColumnType
    lengths: torch.dtype

    @property
    def types(self) -> tuple[ColumnType, ...]:
        """One column."""
        return (self.type,)

    def put_together(self, columns: Sequence[Column]) -> object:
        """Returns a Jagged."""
        return Jagged(columns[0].values, _lengths_of(columns[0]).to(self.lengths))

    def __str__(self) -> str:
        return f"Jagged {self.type}, lengths {self.lengths}"


@dataclass(frozen=True)
class NestedLeaf:
    """A nested tensor of torch with the jagged layout."""

    type: ColumnType
    offsets: torch.dtype

    @property
    def types(self) -> tuple[ColumnType, ...]:
        """One column."""
        return (self.type,)

    def put_together(self, columns: Sequence[Column]) -> object:
        """Returns a nested tensor whose values are contiguous."""
        ends = _lengths_of(columns[0]).cumsum(0)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(self.offsets)
        return torch.nested.nested_tensor_from_jagged(columns[0].values, offsets=offsets)

    def __str__(self) -> str:
        return f"nested tensor {self.type}, offsets {self.offsets}"


@dataclass(frozen=True)
class KeyedJaggedLeaf:
    """A KeyedJaggedTensor of TorchRec: a column for each key, and one for its weights if any."""

    keys: tuple[str, ...]
    values: ColumnType
    weights: ColumnType | None
    lengths: torch.dtype

    @property
    def types(self) -> tuple[ColumnType, ...]:
        """Values of all keys, then weights of all keys."""
        weights = () if self.weights is None else (self.weights,) * len(self.keys)
        return (self.values,) * len(self.keys) + weights

    def put_together(self, columns: Sequence[Column]) -> object:
        """Returns a KeyedJaggedTensor with lengths."""
        count = len(self.keys)
        values = concatenate(columns[:count])
        weights = concatenate(columns[count:]).values if self.weights is not None else None
        keyed_jagged_tensor: Any = importlib.import_module(_TORCHREC).KeyedJaggedTensor
        return keyed_jagged_tensor(
            keys=list(self.keys),
            values=values.values,
            lengths=_lengths_of(values).to(self.lengths),
            weights=weights,
        )

    def __str__(self) -> str:
        weights = "no weights" if self.weights is None else f"weights {self.weights}"
        return f"KeyedJaggedTensor {list(self.keys)}, {self.values}, {weights}, {self.lengths}"


def take_leaf_apart(value: object, path: str) -> tuple[Leaf, list[Column]]:
    """Returns what a field is like, and its samples.

    Args:
        value: The field.
        path: Where it lies in the batch, for messages.

    Raises:
        TypeError: It is of no kind that can be shared out.
        ValueError: It is, but not in this form.
    """
    if value is None:
        return AbsentLeaf(), []
    if isinstance(value, torch.Tensor) and value.is_nested:
        return _take_nested_apart(value, path)
    if isinstance(value, torch.Tensor):
        _check_rows(value, path)
        column = dense_column(value)
        return TensorLeaf(column.type), [column]
    if isinstance(value, Jagged):
        _check_rows(value.values, f"{path}.values")
        _check_lengths(value.lengths, len(value.values), f"{path}.lengths")
        column = ragged_column(value.values, value.lengths)
        return JaggedLeaf(column.type, value.lengths.dtype), [column]
    # Whoever holds one has imported it.
    torchrec: Any = sys.modules.get(_TORCHREC)
    if torchrec is not None and isinstance(value, torchrec.KeyedJaggedTensor):
        return _take_keyed_apart(value, path)
    raise TypeError(
        f"{path} is of type {type(value).__name__}: samples are moved as tensors, Jagged, nested"
        " tensors or KeyedJaggedTensors; whatever else belongs to a sample would be left behind"
    )


def _take_nested_apart(value: Any, path: str) -> tuple[Leaf, list[Column]]:
    if value.layout != torch.jagged:
        raise ValueError(f"{path}: nested tensors must have the layout torch.jagged")
    # The ragged dimension is the one whose size is a symbol.
    if isinstance(value.size(1), int):
        raise ValueError(f"{path}: dimension 1 of a nested tensor must be the ragged one")
    offsets, lengths = value.offsets(), value.lengths()
    _check_rows(value.values(), path, gradient=value.requires_grad)
    if lengths is None:
        column = ragged_column(value.values(), offsets.diff())
    else:
        column = ragged_column(value.values(), lengths, starts=offsets[:-1])
    return NestedLeaf(column.type, offsets.dtype), [column]


def _take_keyed_apart(value: Any, path: str) -> tuple[Leaf, list[Column]]:
    if value.variable_stride_per_key() or value.inverse_indices_or_none() is not None:
        raise ValueError(f"{path}: every key must have as many samples, and no inverse indices")
    keys, lengths = tuple(value.keys()), value.lengths()
    if not keys:
        raise ValueError(f"{path}: a KeyedJaggedTensor without keys has no samples")
    _check_rows(value.values(), f"{path}.values()")
    _check_lengths(lengths, len(value.values()), f"{path}.lengths()")
    lengths_of_keys = lengths.view(len(keys), -1)
    columns, weights_type = _columns_of_keys(value.values(), lengths_of_keys), None
    values_type = columns[0].type
    weights = value.weights_or_none()
    if weights is not None:
        _check_rows(weights, f"{path}.weights()")
        columns += _columns_of_keys(weights, lengths_of_keys)
        weights_type = columns[-1].type
    return KeyedJaggedLeaf(keys, values_type, weights_type, lengths.dtype), columns


def _columns_of_keys(values: torch.Tensor, lengths: torch.Tensor) -> list[Column]:
    pieces = values.split(lengths.sum(1).tolist())
    return [ragged_column(piece, own) for piece, own in zip(pieces, lengths, strict=True)]


def _lengths_of(column: Column) -> torch.Tensor:
    assert column.lengths is not None
    return column.lengths


def _check_rows(values: torch.Tensor, path: str, gradient: bool = False) -> None:
    if values.layout != torch.strided or values.is_quantized:
        raise ValueError(f"{path}: {values.layout} or quantized tensors can't be shared out")
    if values.device.type != "cpu":
        raise ValueError(
            f"{path}: is on {values.device}, but must be on the CPU: balance before .to()"
        )
    if values.dim() == 0:
        raise ValueError(f"{path}: a scalar has no samples; the first dimension must be theirs")
    if values.requires_grad or gradient:
        raise ValueError(f"{path}: requires a gradient, which would not come back: detach it")


def _check_lengths(lengths: torch.Tensor, rows: int, path: str) -> None:
    if lengths.dim() != 1 or lengths.dtype not in _INTEGERS or lengths.device.type != "cpu":
        raise ValueError(
            f"{path}: must be integers of shape [n] on the CPU, got {lengths.dtype} of shape"
            f" {list(lengths.shape)} on {lengths.device}"
        )
    if bool((lengths < 0).any()):
        raise ValueError(f"{path}: length {int(lengths.min())} is negative")
    total = int(lengths.sum())
    if total != rows:
        raise ValueError(f"{path}: add up to {total}, but there are {rows} rows of values")
