"""Nested batches, taken apart into columns and put together again."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from freescale_pg.balance.online.columns import Column, ColumnType
from freescale_pg.balance.online.leaves import Leaf, take_leaf_apart


@dataclass(frozen=True)
class Branch:
    """A dict, list, tuple or named tuple.

    Attributes:
        kind: Its class; dict for any kind of dict.
        keys: Of a dict, in its order; else None.
        children: What it holds, in order.
    """

    kind: type[Any]
    keys: tuple[str | int, ...] | None
    children: tuple["Structure", ...]


# What a batch is like, apart from its samples. It can be pickled, and equal ones have equal reprs.
Structure: TypeAlias = Branch | Leaf


@dataclass(frozen=True, eq=False)
class TakenApart:
    """A batch in parts.

    Attributes:
        structure: What it is like.
        columns: Its samples.
        samples: How many.
    """

    structure: Structure
    columns: list[Column]
    samples: int


def take_apart(batch: object, name: str = "batch") -> TakenApart:
    """Takes a batch, or something like it, of this name for messages, apart.

    Raises:
        TypeError: It holds something that cannot be shared out.
        ValueError: It holds no tensor, or fields have different numbers of samples.
    """
    found: list[tuple[str, Column]] = []

    def visit_leaf(value: object, path: str) -> Leaf:
        leaf, columns = take_leaf_apart(value, path)
        found.extend((path, column) for column in columns)
        return leaf

    structure = _describe(batch, name, visit_leaf)
    if not found:
        raise ValueError(f"{name} holds no tensor")
    first_path, first = found[0]
    for path, column in found:
        if column.samples != first.samples:
            raise ValueError(
                f"{path} has {column.samples} samples, but {first_path} has {first.samples}"
            )
    return TakenApart(structure, [column for _, column in found], first.samples)


def put_together(structure: Structure, columns: Sequence[Column]) -> Any:
    """Makes a batch of this structure; the columns must be of :func:`column_types`."""
    left = iter(columns)
    batch = _build(structure, left)
    assert next(left, None) is None
    return batch


def column_types(structure: Structure) -> list[ColumnType]:
    """Returns the types of the columns that a batch of this structure is moved as."""
    if not isinstance(structure, Branch):
        return list(structure.types)
    return [type for child in structure.children for type in column_types(child)]


def describe(structure: Structure, path: str = "batch") -> Iterator[tuple[str, str]]:
    """Yields path and description of every part, such as ``batch['history'][0]``."""
    if not isinstance(structure, Branch):
        yield path, str(structure)
        return
    names = range(len(structure.children)) if structure.keys is None else structure.keys
    yield path, f"{structure.kind.__name__} of {', '.join(map(repr, names))}"
    for name, child in zip(names, structure.children, strict=True):
        yield from describe(child, f"{path}[{name!r}]")


def _describe(value: object, path: str, leaf: Callable[[object, str], Leaf]) -> Structure:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"{path}: key {key!r} must be a string or an integer")
        children = (_describe(child, f"{path}[{key!r}]", leaf) for key, child in value.items())
        return Branch(dict, tuple(value), tuple(children))
    if type(value) in (list, tuple) or _is_named_tuple(value):
        assert isinstance(value, list | tuple)
        children = (_describe(child, f"{path}[{i}]", leaf) for i, child in enumerate(value))
        return Branch(type(value), None, tuple(children))
    return leaf(value, path)


def _build(structure: Structure, columns: Iterator[Column]) -> Any:
    if not isinstance(structure, Branch):
        return structure.put_together([next(columns) for _ in structure.types])
    children = [_build(child, columns) for child in structure.children]
    if structure.keys is not None:
        return dict(zip(structure.keys, children, strict=True))
    if structure.kind in (list, tuple):
        return structure.kind(children)
    return structure.kind(*children)


def _is_named_tuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")
