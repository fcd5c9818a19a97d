"""Equal load for all ranks: a batch sampler, one for streams, and what a sample costs.

:class:`BalancedBatchSampler` deals each global batch out to the ranks so that all of them finish at
about the same time. It needs a cost for each sample: its length, or a function of that, which
:func:`fit_cost` finds from measured step times. :class:`OnlineBalancer` is for batches whose costs
are known only when they arrive. ``docs/balancing.md`` tells how to use them.
"""

from freescale_pg.balance.cost import CostModel, Linear, Quadratic
from freescale_pg.balance.fit import CostFit, fit_cost
from freescale_pg.balance.global_batch import GlobalBatch
from freescale_pg.balance.imbalance import BatchBalance, EpochBalance
from freescale_pg.balance.lengths import Lengths
from freescale_pg.balance.online import (
    BalancedBatch,
    Jagged,
    OnlineBalancer,
    OnlineStats,
    PlannedBatch,
)
from freescale_pg.balance.rebalance import Rebalancing, rebalance
from freescale_pg.balance.sampler import BalancedBatchSampler
from freescale_pg.balance.workload import Workload

__all__ = [
    "BalancedBatch",
    "BalancedBatchSampler",
    "BatchBalance",
    "CostFit",
    "CostModel",
    "EpochBalance",
    "GlobalBatch",
    "Jagged",
    "Lengths",
    "Linear",
    "OnlineBalancer",
    "OnlineStats",
    "PlannedBatch",
    "Quadratic",
    "Rebalancing",
    "Workload",
    "fit_cost",
    "rebalance",
]
