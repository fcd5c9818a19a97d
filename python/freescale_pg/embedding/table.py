"""What a user says of an embedding table."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torch import nn

Sharding: TypeAlias = Literal["row", "table", "column"]
Pooling: TypeAlias = Literal["sum", "mean"]


@dataclass(frozen=True)
class EmbeddingTable:
    """One table of a :class:`ShardedEmbeddingCollection`.

    Args:
        name: Of the table, in state dicts and messages: a Python identifier, and none that
            ``nn.Module`` uses, such as ``type``.
        num_embeddings: Rows; ids are 0 to ``num_embeddings - 1``.
        dim: Length of a row.
        sharding: ``"row"``: every rank holds an equal share of the rows. ``"table"``: one rank
            holds all. ``"column"``: every rank holds an equal share of each row.
        pooling: None: a vector for every id. ``"sum"`` or ``"mean"``: one for every bag of ids, the
            zero vector for an empty one.
        features: Names of the inputs that are looked up in this table; empty: one, with the table's
            name.
        rank: Of a table that one rank holds: which; None: tables are dealt out by size.
        std: Standard deviation of the normal distribution that initial values are drawn from.

    Raises:
        ValueError: An argument is out of range.
    """

    name: str
    num_embeddings: int
    dim: int
    sharding: Sharding = "row"
    pooling: Pooling | None = None
    features: tuple[str, ...] = ()
    rank: int | None = None
    std: float = 1.0

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"a table's name must be an identifier, got {self.name!r}")
        if hasattr(nn.Module(), self.name):
            raise ValueError(f"a table's name can't be {self.name!r}: torch.nn.Module uses it")
        for what in ("num_embeddings", "dim"):
            value = getattr(self, what)
            if value < 1:
                raise ValueError(f"table {self.name}: {what} must be 1 or more, got {value}")
        if self.sharding not in get_args(Sharding):
            raise ValueError(
                f"table {self.name}: sharding must be one of {get_args(Sharding)}, got"
                f" {self.sharding!r}"
            )
        if self.pooling is not None and self.pooling not in get_args(Pooling):
            raise ValueError(
                f"table {self.name}: pooling must be None or one of {get_args(Pooling)}, got"
                f" {self.pooling!r}"
            )
        if self.rank is not None and self.sharding != "table":
            raise ValueError(
                f"table {self.name}: rank={self.rank} is for sharding='table', not"
                f" {self.sharding!r}"
            )
        if not (math.isfinite(self.std) and self.std >= 0):
            raise ValueError(f"table {self.name}: std must be 0 or more, got {self.std}")
        if isinstance(self.features, str):  # type: ignore[unreachable]
            raise ValueError(
                f"table {self.name}: features must be a tuple of names, got {self.features!r}"
            )
        if not self.features:
            object.__setattr__(self, "features", (self.name,))


def check_tables(tables: tuple[EmbeddingTable, ...], world_size: int) -> None:
    """Raises ValueError if tables can't stand beside each other, or on that number of ranks."""
    if not tables:
        raise ValueError("there must be at least one table")
    names = [table.name for table in tables]
    features = [feature for table in tables for feature in table.features]
    for what, given in (("tables", names), ("features", features)):
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise ValueError(f"two {what} have the same name: {', '.join(twice)}")
    for table in tables:
        if table.rank is not None and not 0 <= table.rank < world_size:
            raise ValueError(
                f"table {table.name}: rank {table.rank} does not exist; there are {world_size}"
            )
