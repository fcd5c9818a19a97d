"""Which contestants take part in a run, and building them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch.distributed as dist

from bench.contestants import Contestant, Floor, Limit, Mpi, TorchBackend
from bench.ranks import Ranks
from bench.results import CANDIDATE
from bench.shared_mapping import shared_mapping

TORCH_BACKENDS = (CANDIDATE, "gloo")
CONTESTANTS = (*TORCH_BACKENDS, "mpi", "floor", "limit")


def choose_contestants(
    wanted: Sequence[str] | None, ranks: Ranks, among: Sequence[str] = CONTESTANTS
) -> list[str]:
    """The contestants that can take part; rank 0 says on stderr which cannot.

    Args:
        wanted: names asked for, or None for all of ``among`` that can take part.
        ranks: the run.
        among: names that the benchmark knows.

    Raises:
        SystemExit: a contestant that was asked for by name cannot take part.
    """
    absent = _absent(ranks)
    for name in wanted or ():
        if name in absent:
            raise SystemExit(f"cannot measure {name}: {absent[name]}")
    if wanted is None and ranks.rank == 0:
        for name in (name for name in among if name in absent):
            print(f"without {name}: {absent[name]}", file=sys.stderr)
    return [name for name in wanted or among if name not in absent]


def _absent(ranks: Ranks) -> dict[str, str]:
    reasons = {}
    if not dist.is_backend_available(CANDIDATE):
        reasons[CANDIDATE] = "freescale_pg is not installed in this environment"
    if ranks.mpi is None:
        reasons["mpi"] = "not started by mpirun (pip install -r benchmarks/requirements.txt)"
    return reasons


def make_contestant(name: str, largest_input: int, ranks: Ranks) -> Contestant:
    """Builds a contestant. A collective call.

    Args:
        name: one that ``choose_contestants`` returned.
        largest_input: bytes of the largest input that a rank will have.
        ranks: the run.
    """
    match name:
        case "mpi":
            return Mpi(ranks.mpi)
        case "limit" | "floor":
            limit = Limit(shared_mapping(ranks, ranks.world_size * largest_input))
            return limit if name == "limit" else Floor(limit)
        case _:
            return TorchBackend(name)
