"""Equal load for all ranks: a batch sampler, and what it costs to process a sample.

:class:`BalancedBatchSampler` deals each global batch out to the ranks so that all of them finish at
about the same time. It needs a cost for each sample: its length, or a function of that, which
:func:`fit_cost` finds from measured step times. ``docs/balancing.md`` tells how to use it.
"""

from freescale_pg.balance.cost import CostModel, Linear, Quadratic
from freescale_pg.balance.fit import CostFit, fit_cost
from freescale_pg.balance.global_batch import GlobalBatch
from freescale_pg.balance.imbalance import BatchBalance, EpochBalance
from freescale_pg.balance.lengths import Lengths
from freescale_pg.balance.rebalance import Rebalancing, rebalance
from freescale_pg.balance.sampler import BalancedBatchSampler

__all__ = [
    "BalancedBatchSampler",
    "BatchBalance",
    "CostFit",
    "CostModel",
    "EpochBalance",
    "GlobalBatch",
    "Lengths",
    "Linear",
    "Quadratic",
    "Rebalancing",
    "fit_cost",
    "rebalance",
]
