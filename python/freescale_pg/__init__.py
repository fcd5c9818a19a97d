"""freescale: a torch.distributed backend for sequence recommenders, with priorities.

``dist.init_process_group(backend="freescale")`` works without importing this package. Import it for
priorities, for the operators that take one, and for statistics.

Importing it costs next to nothing, since ``import torch`` does so in every process: names are
loaded when first used, and only then torch and the C++ module.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from freescale_pg import balance, debug, embedding, functional, observe
    from freescale_pg._agreement import RanksDisagreeError
    from freescale_pg._priority import Priority, priority
    from freescale_pg.balance.online.balancer import OnlineBalancer
    from freescale_pg.balance.sampler import BalancedBatchSampler
    from freescale_pg.embedding.overlap import EmbeddingOverlap
    from freescale_pg.embedding.pipeline import OverlapPipeline
    from freescale_pg.embedding.sharded_embedding import (
        ShardedEmbedding,
        ShardedEmbeddingCollection,
    )
    from freescale_pg.observe.meter import BubbleMeter
    from freescale_pg.observe.recorder import record_run
    from freescale_pg.observe.tracing import trace
    from freescale_pg.operators import all_gather_into_tensor, all_to_all_single
    from freescale_pg.options import Options
    from freescale_pg.statistics import LinkStats, OpStats, Stats, reset_stats, stats

__all__ = [
    "BalancedBatchSampler",
    "BubbleMeter",
    "EmbeddingOverlap",
    "LinkStats",
    "OnlineBalancer",
    "OpStats",
    "Options",
    "OverlapPipeline",
    "Priority",
    "RanksDisagreeError",
    "ShardedEmbedding",
    "ShardedEmbeddingCollection",
    "Stats",
    "all_gather_into_tensor",
    "all_to_all_single",
    "balance",
    "debug",
    "embedding",
    "functional",
    "observe",
    "priority",
    "record_run",
    "reset_stats",
    "stats",
    "trace",
]

# Not all are in __all__: the last two need more than this package does.
_MODULES = ("balance", "debug", "embedding", "functional", "observe", "streams", "torchrec")
# The module that defines each other name.
_HOMES = {
    "BalancedBatchSampler": "balance.sampler",
    "BubbleMeter": "observe.meter",
    "EmbeddingOverlap": "embedding.overlap",
    "OnlineBalancer": "balance.online.balancer",
    "LinkStats": "statistics",
    "OpStats": "statistics",
    "Options": "options",
    "OverlapPipeline": "embedding.pipeline",
    "Priority": "_priority",
    "RanksDisagreeError": "_agreement",
    "ShardedEmbedding": "embedding.sharded_embedding",
    "ShardedEmbeddingCollection": "embedding.sharded_embedding",
    "Stats": "statistics",
    "all_gather_into_tensor": "operators",
    "all_to_all_single": "operators",
    "priority": "_priority",
    "record_run": "observe.recorder",
    "reset_stats": "statistics",
    "stats": "statistics",
    "trace": "observe.tracing",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
