"""How ranks meet before a timed call: in shared memory, or over the control group between hosts."""

from __future__ import annotations

from typing import Protocol

import torch.distributed as dist

from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.shared_mapping import NotSharedError
from freescale_pg.bench.spin_barrier import SpinBarrier


class Barrier(Protocol):
    """Where all ranks meet."""

    def wait(self) -> None:
        """Returns once every rank has called it as often as this one."""
        ...


class GroupBarrier:
    """A barrier of the control group, for ranks that share no memory.

    Ranks leave it within about one latency of the network of each other, which a timed call then
    holds: of the ranks the slowest counts.
    """

    def wait(self) -> None:
        """Returns once every rank has called it as often as this one."""
        dist.barrier()


def make_barrier(ranks: Ranks, yields: bool) -> Barrier:
    """Makes a barrier in shared memory where ranks share some, else one of the control group.

    A collective call.

    Args:
        ranks: The run.
        yields: As :class:`SpinBarrier` has it.
    """
    try:
        return SpinBarrier(ranks, yields)
    except NotSharedError:
        return GroupBarrier()


def share_memory(ranks: Ranks) -> bool:
    """Whether all ranks are on one host. A collective call."""
    return isinstance(make_barrier(ranks, yields=True), SpinBarrier)
