"""The exchange on the freescale backend: urgent, with the backend's own accounts."""

import torch.distributed as dist
from torch import Tensor

import freescale_pg as fs
from seqrec.exchange import BlockedTime


class FreescaleExchange:
    """An ``Exchange`` on an URGENT group.

    The forward pass cannot begin without the rows, so ids, rows and gradients of rows overtake the
    dense gradients that DDP reduces on the default group. The priority belongs to the group and so
    holds in the backward pass too, which autograd runs on a thread of its own.
    """

    caption = "rank 0: time inside wait(), all groups, as counted by the backend"

    def __init__(self) -> None:
        options = fs.Options(priority=fs.Priority.URGENT)
        self._group = dist.new_group(pg_options=options)

    def all_to_all(
        self, rows: Tensor, received: list[int] | None = None, sent: list[int] | None = None
    ) -> Tensor:
        """See ``Exchange.all_to_all``."""
        return fs.functional.all_to_all_single(rows, received, sent, group=self._group)

    def reset(self) -> None:
        """See ``Exchange.reset``."""
        fs.reset_stats()

    def blocked(self) -> list[BlockedTime]:
        """See ``Exchange.blocked``."""
        return [
            BlockedTime(op.priority, op.op, op.calls, op.bytes_sent, op.blocked_seconds)
            for op in fs.stats().ops
        ]
