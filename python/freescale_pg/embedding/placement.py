"""Where the rows and columns of a table lie.

Ids are often sorted by popularity, so neighbours must not meet on one rank. Row *i* of a table with
*n* rows therefore has the *position* i·a mod n, for a fixed number *a* that is near n·0.618 and has
no divisor in common with n; ranks hold equal ranges of positions. A multiple of the golden ratio
spreads any run of ids evenly over any equal ranges (the three-distance theorem; Knuth, The Art of
Computer Programming 3, 6.4), as it is no near-multiple of any short period. Of the fractions a/n
near it the one is taken that is most like it in that. Positions do not depend on the number of
ranks, so a checkpoint can be loaded by another number of them.
"""

import math
from dataclasses import dataclass

import torch

from freescale_pg.embedding.table import EmbeddingTable

_GOLDEN = (math.sqrt(5) - 1) / 2
# How far from it a multiplier is looked for. There is a good one (no term beyond 10) within it.
_SEARCH = 32
# Beyond it a product of two row numbers may not fit 64 bits.
_MOST_SPREAD_ROWS = math.isqrt(2**63 - 1)


@dataclass(frozen=True)
class Shard:
    """The part of a table that one rank holds: some positions, some columns, or none of either."""

    rows: range
    columns: range

    @property
    def holds_nothing(self) -> bool:
        """Whether there is no value in it."""
        return not (self.rows and self.columns)


@dataclass(frozen=True)
class Placement:
    """The shards of one table.

    Attributes:
        table: What the user said of it.
        shards: By rank.
        multiplier: From ids to positions; 1 leaves them in order.
    """

    table: EmbeddingTable
    shards: tuple[Shard, ...]
    multiplier: int

    def positions(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the positions of ids; int64, of the same shape."""
        ids = ids.to(torch.int64)
        return ids if self.multiplier == 1 else ids * self.multiplier % self.table.num_embeddings


def place(
    tables: tuple[EmbeddingTable, ...], world_size: int, *, spread: bool
) -> tuple[Placement, ...]:
    """Places tables on ranks; the same on all ranks.

    Args:
        tables: What to place.
        world_size: Number of ranks.
        spread: Whether neighbouring ids are spread over the ranks.

    Raises:
        ValueError: A table has too many rows to be spread.
    """
    holders = _deal_tables(tables, world_size)
    return tuple(
        Placement(
            table,
            tuple(_shard(table, rank, world_size, holders) for rank in range(world_size)),
            _multiplier(table) if spread else 1,
        )
        for table in tables
    )


def _shard(table: EmbeddingTable, rank: int, world_size: int, holders: dict[str, int]) -> Shard:
    rows, columns = range(table.num_embeddings), range(table.dim)
    if table.sharding == "row":
        return Shard(_share(rows, rank, world_size), columns)
    if table.sharding == "column":
        return Shard(rows, _share(columns, rank, world_size))
    return Shard(rows if holders[table.name] == rank else range(0), columns)


def _share(whole: range, rank: int, world_size: int) -> range:
    """Cuts as ``torch.chunk`` and DTensor do: the last ranks may get less, or nothing."""
    size = -(-len(whole) // world_size)
    return whole[rank * size : (rank + 1) * size]


def _deal_tables(tables: tuple[EmbeddingTable, ...], world_size: int) -> dict[str, int]:
    """Chooses holders of whole tables: the largest first, each to the rank with the least."""
    loads, holders = [0] * world_size, {}
    for table in tables:
        if table.rank is not None:
            loads[table.rank] += table.num_embeddings * table.dim
            holders[table.name] = table.rank
    free = [table for table in tables if table.sharding == "table" and table.rank is None]
    for table in sorted(free, key=lambda table: -table.num_embeddings * table.dim):
        rank = loads.index(min(loads))
        loads[rank] += table.num_embeddings * table.dim
        holders[table.name] = rank
    return holders


def _multiplier(table: EmbeddingTable) -> int:
    rows = table.num_embeddings
    if rows > _MOST_SPREAD_ROWS:
        raise ValueError(
            f"table {table.name}: {rows} rows are too many to be spread; at most"
            f" {_MOST_SPREAD_ROWS}, or spread=False"
        )
    nearest = round(rows * _GOLDEN)
    candidates = range(max(1, nearest - _SEARCH), max(2, min(rows, nearest + _SEARCH)))
    coprime = [number for number in candidates if math.gcd(number, rows) == 1]
    return min(coprime, key=lambda number: (_largest_term(number, rows), abs(number - nearest)))


def _largest_term(numerator: int, denominator: int) -> int:
    """Returns the largest term of the continued fraction; all those of the golden ratio are 1.

    After a term *t* with a convergent of denominator *q*, ids that are *q* apart lie side by side,
    t of them: so many more of a run than its share may meet on one rank.
    """
    largest = 0
    while numerator:
        largest = max(largest, denominator // numerator)
        numerator, denominator = denominator % numerator, numerator
    return largest
