"""Balance for streams: batches arrive on the ranks, and few samples move between them.

From the bottom: ``columns`` (fields as rows of bits), ``leaves`` and ``structure`` (what batches
consist of), ``assignment`` and ``routing`` (who gets what), ``announcement`` and ``exchange``
(the two messages of a step), ``balancer``.
"""

from freescale_pg.balance.online.balanced_batch import BalancedBatch
from freescale_pg.balance.online.balancer import OnlineBalancer, OnlineStats, PlannedBatch
from freescale_pg.balance.online.jagged import Jagged

__all__ = ["BalancedBatch", "Jagged", "OnlineBalancer", "OnlineStats", "PlannedBatch"]
