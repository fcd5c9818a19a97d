"""Memory that every rank of the run maps."""

from __future__ import annotations

import mmap
import os

import torch
import torch.distributed as dist

from bench.ranks import Ranks


def shared_mapping(ranks: Ranks, size: int) -> mmap.mmap:
    """Maps ``size`` zeroed bytes, the same ones in every rank. A collective call.

    The memory is an anonymous file that goes with its last mapping, so a run that is killed leaves
    nothing in /dev/shm. Peers open it through /proc, which the kernel allows to the same user.

    Args:
        ranks: the run.
        size: bytes, positive and the same on every rank.
    """
    owned = _reserve(size) if ranks.rank == 0 else None
    address = torch.tensor([os.getpid(), -1 if owned is None else owned])
    dist.broadcast(address, src=0)
    process, number = address.tolist()
    descriptor = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
    try:
        mapping = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    dist.barrier()
    if owned is not None:
        os.close(owned)
    return mapping


def _reserve(size: int) -> int:
    descriptor = os.memfd_create("freescale-bench")
    # Without the reservation a lack of memory would be a SIGBUS in the middle of a measurement.
    os.posix_fallocate(descriptor, 0, size)
    return descriptor
