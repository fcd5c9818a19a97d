"""Joining the processes of one run: rank, world size, and a gloo control group.

A process learns its place from the launcher's environment: Open MPI's ``OMPI_COMM_WORLD_RANK`` or
torchrun's ``RANK``. The default process group is always gloo and is used for control only
(agreeing on rounds, collecting times); what is measured runs on groups made with ``new_group``.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

MPI_RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"
# A peer that died is reported by the launcher; this only bounds a rank that hangs.
_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Ranks:
    """This process's place in the run.

    Attributes:
        rank: this process, ``0 … world_size - 1``.
        world_size: how many processes take part.
        mpi: mpi4py's world communicator, or None when the run was not started by mpirun.
    """

    rank: int
    world_size: int
    mpi: Any | None

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks outnumber the cores this process may use, so that spinning must yield."""
        return self.world_size > usable_cores()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def started_as_rank() -> bool:
    """Whether mpirun or torchrun started this process."""
    return MPI_RANK_VARIABLE in os.environ or "RANK" in os.environ


@contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the run that the launcher described, and leaves it at the end.

    Yields:
        This process's place. Inside the block torch's default group is a gloo group.
    """
    with tempfile.TemporaryDirectory(prefix="freescale-bench-") as directory:
        ranks = _join_mpi(Path(directory)) if MPI_RANK_VARIABLE in os.environ else _join_torchrun()
        # Ranks share the cores, so each gets its part for local copies and reductions.
        torch.set_num_threads(max(1, usable_cores() // ranks.world_size))
        try:
            yield ranks
        except BaseException:
            _abandon(ranks)
            raise
        dist.barrier()
        dist.destroy_process_group()
        if ranks.mpi is not None:
            ranks.mpi.Barrier()  # rank 0's directory holds the store of all


def _abandon(ranks: Ranks) -> None:
    # torchrun ends the other ranks when one fails. Under mpirun this rank would stay in the
    # finalisation of MPI until the others come, which wait for it in a collective.
    if ranks.mpi is not None:
        traceback.print_exc()
        ranks.mpi.Abort(1)


def _join_mpi(directory: Path) -> Ranks:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    store = world.bcast(str(directory / "store"), root=0)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=world.rank,
        world_size=world.size,
        timeout=_TIMEOUT,
    )
    return Ranks(world.rank, world.size, world)


def _join_torchrun() -> Ranks:
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size(), None)


def agreed(value: float) -> float:
    """Rank 0's value, on every rank: what all must decide alike is decided by one of them."""
    box = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(box, src=0)
    return float(box.item())
