"""Embedding tables as one process has them: the reference of all tests of sharded ones."""

from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from freescale_pg.balance import Jagged
from freescale_pg.embedding import EmbeddingTable, ShardedEmbedding, ShardedEmbeddingCollection
from freescale_pg.embedding.shard import TableShard

Sharded: TypeAlias = ShardedEmbedding | ShardedEmbeddingCollection


def assemble(shard: TableShard, own: Tensor) -> Tensor:
    """Returns the whole of what all ranks have of a table, in the order of ids; collective.

    Args:
        shard: Of the table.
        own: What this rank has: shape ``[rows, columns]`` or ``[rows]``.
    """
    parts: list[Tensor | None] = [None] * shard._group.size()
    dist.all_gather_object(parts, own.detach(), group=shard._group)
    table = shard.placement.table
    rows, dim = table.num_embeddings, table.dim
    whole = torch.full((rows, dim)[: own.dim()], float("nan"), dtype=own.dtype)
    for part, place in zip(parts, shard.placement.shards, strict=True):
        assert part is not None
        target = whole[place.rows.start : place.rows.stop]
        if own.dim() == 2:
            target = target[:, place.columns.start : place.columns.stop]
        target.copy_(part)
    return whole[shard.placement.positions(torch.arange(rows))]


def whole_tables(embedding: Sharded) -> dict[str, Tensor]:
    """Returns all values of all tables, in the order of ids; collective."""
    return {
        name: assemble(embedding.tables[name], embedding.tables[name].weight)
        for name in embedding.tables
    }


def snapshot(embedding: Sharded) -> dict[str, Tensor]:
    """Returns copies of this rank's shards with their optimizer state and step counters."""
    kept = {}
    for name in embedding.tables:
        shard = embedding.tables[name]
        kept[f"{name}.weight"] = shard.weight.detach().clone()
        kept[f"{name}.steps"] = torch.tensor(shard.steps)
        kept |= {f"{name}.{what}": state.clone() for what, state in shard.state.items()}
    return kept


def look_up(
    table: EmbeddingTable, values: Tensor, ids: Tensor | Jagged, weights: Tensor | None = None
) -> Tensor:
    """What torch makes of a feature, given the whole table."""
    if isinstance(ids, Tensor):
        return F.embedding(ids.long(), values)
    lengths = ids.lengths.long()
    bags = torch.arange(len(lengths)).repeat_interleave(lengths)
    vectors = F.embedding(ids.values.long(), values)
    if weights is not None:
        vectors = vectors * weights[:, None]
    sums = values.new_zeros(len(lengths), table.dim).index_add(0, bags, vectors)
    if table.pooling == "mean":
        sums = sums / lengths.clamp(min=1)[:, None]
    return sums
