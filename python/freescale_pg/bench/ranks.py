"""Joining the processes of one run: rank, world size, and a gloo control group.

A process learns its place from the launcher's environment: Open MPI's ``OMPI_COMM_WORLD_RANK``, or
``RANK`` as torchrun and ``bench.launch`` set it. The default process group is always gloo and is
used for control only (agreeing on rounds, collecting times); what is measured runs on groups made
with ``new_group``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from freescale_pg.bench.launch import LAUNCHER_VARIABLE

MPI_RANK_VARIABLE = "OMPI_COMM_WORLD_RANK"
_MPI_LOCAL_RANK, _MPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
# A peer that died is reported by the launcher; this only bounds a rank that hangs.
_TIMEOUT = timedelta(minutes=5)
_PR_SET_PDEATHSIG = 1


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
    def local_size(self) -> int:
        """How many of them run on this host; all, where the launcher does not say."""
        return _told("LOCAL_WORLD_SIZE", _MPI_LOCAL_SIZE, self.world_size)

    @property
    def local_rank(self) -> int:
        """This process among those of its host."""
        return _told("LOCAL_RANK", _MPI_LOCAL_RANK, self.rank)

    @property
    def oversubscribed(self) -> bool:
        """Whether ranks outnumber the cores this process may use, so that spinning must yield."""
        return self.local_size > usable_cores()


def _told(torchrun: str, mpi: str, otherwise: int) -> int:
    return int(os.environ.get(torchrun) or os.environ.get(mpi) or otherwise)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def started_as_rank() -> bool:
    """Whether a launcher started this process as a rank."""
    return MPI_RANK_VARIABLE in os.environ or "RANK" in os.environ


def size_of_job() -> int:
    """Ranks of the job that this process was started in."""
    return int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ["WORLD_SIZE"])


@contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the run that the launcher described, and leaves it at the end.

    Yields:
        This process's place. Inside the block torch's default group is a gloo group.
    """
    _end_with_launcher()
    ranks = _join_mpi() if MPI_RANK_VARIABLE in os.environ else _join_torchrun()
    # Ranks share the cores, so each gets its part for local copies and reductions.
    torch.set_num_threads(max(1, usable_cores() // ranks.local_size))
    try:
        yield ranks
    except BaseException:
        _abandon(ranks)
        raise
    dist.barrier()
    dist.destroy_process_group()
    if ranks.mpi is not None:
        ranks.mpi.Barrier()  # rank 0 keeps the store of all


def _end_with_launcher() -> None:
    """Has the kernel end this rank when the process that started it ends, however that comes."""
    launcher = os.environ.get(LAUNCHER_VARIABLE)
    if launcher is None or MPI_RANK_VARIABLE in os.environ:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        raise SystemExit(f"process {launcher}, which started this rank, has ended")


def _abandon(ranks: Ranks) -> None:
    # Launchers end the other ranks when one fails. Under mpirun this rank would stay in the
    # finalisation of MPI until the others come, which wait for it in a collective.
    if ranks.mpi is not None:
        traceback.print_exc()
        ranks.mpi.Abort(1)


def _join_mpi() -> Ranks:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    ranks = Ranks(world.rank, world.size, world)
    here = ranks.local_size == ranks.world_size
    address = world.bcast("127.0.0.1" if here else socket.gethostname(), root=0)
    store = None
    if world.rank == 0:
        store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    port = world.bcast(0 if store is None else store.port, root=0)
    if store is None:
        store = dist.TCPStore(address, port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=world.rank, world_size=world.size, timeout=_TIMEOUT
    )
    return ranks


def _join_torchrun() -> Ranks:
    dist.init_process_group("gloo", timeout=_TIMEOUT)
    return Ranks(dist.get_rank(), dist.get_world_size(), None)


def agreed(value: float) -> float:
    """Rank 0's value, on every rank: what all must decide alike is decided by one of them."""
    box = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(box, src=0)
    return float(box.item())
