"""Embedding tables that lie on many ranks, and an exchange that only waits for what it must.

:class:`ShardedEmbedding` and :class:`ShardedEmbeddingCollection` are looked up like any embedding.
:class:`OverlapPipeline` trains with one so that only the rows that consecutive batches share are
waited for, with the same result to the bit; :class:`EmbeddingOverlap` is the same for a training
loop of one's own. ``docs/embedding.md`` tells how to use them.
"""

from freescale_pg.embedding.exchange import EmbeddingExchange
from freescale_pg.embedding.optimizer import SGD, Adam, RowOptimizer, RowwiseAdagrad
from freescale_pg.embedding.overlap import EmbeddingOverlap
from freescale_pg.embedding.pipeline import OverlapPipeline
from freescale_pg.embedding.sharded_embedding import (
    ShardedEmbedding,
    ShardedEmbeddingCollection,
    exclude_from_ddp,
)
from freescale_pg.embedding.table import EmbeddingTable

__all__ = [
    "SGD",
    "Adam",
    "EmbeddingExchange",
    "EmbeddingOverlap",
    "EmbeddingTable",
    "OverlapPipeline",
    "RowOptimizer",
    "RowwiseAdagrad",
    "ShardedEmbedding",
    "ShardedEmbeddingCollection",
    "exclude_from_ddp",
]
