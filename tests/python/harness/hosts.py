"""Ranks that take each other for ranks of different hosts."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from harness.launch import GROUP_TIMEOUT
from harness.rank import open_store


def run_on_hosts(
    rank: int, size: int, hosts: Sequence[int], body: Callable[[int, int], None]
) -> None:
    """A body of a rank: makes the default group, and runs ``body(rank, size)`` in it.

    Args:
        rank: Own rank.
        size: Ranks.
        hosts: By rank, a number of its host.
        body: To be run.
    """
    os.environ["FREESCALE_HOST"] = f"host {hosts[rank]}"
    dist.init_process_group(
        "freescale",
        store=open_store("hosts"),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=GROUP_TIMEOUT),
    )
    body(rank, size)
    dist.destroy_process_group()
