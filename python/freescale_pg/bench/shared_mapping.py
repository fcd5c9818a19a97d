"""Memory that every rank of the run maps."""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path

import torch.distributed as dist

from freescale_pg.bench.ranks import Ranks

_NAME = "freescale-bench"


class NotSharedError(RuntimeError):
    """The ranks cannot share memory: they are on several hosts, or in several PID namespaces."""


def shared_mapping(ranks: Ranks, size: int) -> mmap.mmap:
    """Maps ``size`` zeroed bytes, the same ones in every rank. A collective call.

    The memory is an anonymous file that goes with its last mapping, so a run that is killed leaves
    nothing in /dev/shm. Peers open it through /proc, which the kernel allows to the same user.

    Args:
        ranks: the run.
        size: bytes, positive and the same on every rank.

    Raises:
        NotSharedError: a rank could not map it; on every rank.
    """
    name = f"{_NAME}-{secrets.token_hex(8)}"
    owned = _reserve(name, size) if ranks.rank == 0 else None
    box: list[tuple[str, str]] = [(f"/proc/{os.getpid()}/fd/{owned}", name)]
    dist.broadcast_object_list(box, src=0)
    path, expected = box[0]
    mapping = _open(Path(path), expected, size)
    mapped: list[bool] = [False] * ranks.world_size
    dist.all_gather_object(mapped, mapping is not None)
    if owned is not None:
        os.close(owned)
    if mapping is None or not all(mapped):
        raise NotSharedError(f"rank {mapped.index(False)} shares no memory with rank 0")
    return mapping


def _reserve(name: str, size: int) -> int:
    descriptor = os.memfd_create(name)
    # Without the reservation a lack of memory would be a SIGBUS in the middle of a measurement.
    os.posix_fallocate(descriptor, 0, size)
    return descriptor


def _open(path: Path, name: str, size: int) -> mmap.mmap | None:
    # On another host the same path may lead to any file; only the right one has the name.
    try:
        if not path.readlink().name.startswith(f"memfd:{name}"):
            return None
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
