"""How ranks reach each other: those of this job, or two that are started to find out."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

__all__ = ["JobLink", "LinkProbe", "links_of_job", "probe_link"]

# Seconds for two processes to load torch, meet, and exchange a few bytes.
_PATIENCE = 60.0
_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """What came of two processes that tried to exchange bytes.

    Attributes:
        works: Whether all bytes arrived, both ways.
        transport: "shm" or "ucx"; empty where there was no link.
        reason: Why this one, or what went wrong.
    """

    works: bool
    transport: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobLink:
    """One rank's way to another.

    Attributes:
        rank: That tells.
        peer: That is reached.
        transport: "self", "shm" or "ucx".
        reason: Why this one.
    """

    rank: int
    peer: int
    transport: str
    reason: str


def probe_link(*, between_hosts: bool) -> LinkProbe:
    """Starts two ranks on this machine, and has them exchange a megabyte.

    Args:
        between_hosts: Have them take each other for ranks of different hosts, which go over the
            network; else they share memory.

    Returns:
        What came of it; a failure is a result, not an exception.
    """
    with tempfile.TemporaryDirectory(prefix="freescale-probe-") as folder:
        ranks = [_start(rank, Path(folder) / "store", between_hosts) for rank in range(2)]
        try:
            said = [rank.communicate(timeout=_PATIENCE) for rank in ranks]
        except subprocess.TimeoutExpired:
            return LinkProbe(False, "", f"no answer within {_PATIENCE:g} s")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    for rank, (_, errors) in zip(ranks, said, strict=True):
        if rank.returncode != 0:
            return LinkProbe(False, "", _last_line(errors))
    return LinkProbe(**json.loads(said[0][0]))


def _start(rank: int, store: Path, between_hosts: bool) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if between_hosts:
        environment["FREESCALE_HOST"] = f"probe {rank}"
    return subprocess.Popen(
        [sys.executable, "-m", "freescale_pg.diagnosis.links", str(rank), str(store)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it ended without a word"


def _be_probed(rank: int, store: str) -> LinkProbe:
    """One of the two."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(
        "freescale",
        store=dist.FileStore(store, 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=_PATIENCE / 2),
    )
    _, transport, reason = _own_links()[1 - rank]
    sent = torch.full((2 * _BYTES,), rank, dtype=torch.uint8)
    received = torch.full_like(sent, 255)
    dist.all_to_all_single(received, sent)
    works = received.view(2, _BYTES).eq(torch.arange(2).view(2, 1)).all().item()
    dist.destroy_process_group()
    return LinkProbe(bool(works), transport, reason)


def _own_links() -> list[tuple[int, str, str]]:
    import torch
    import torch.distributed as dist

    from freescale_pg._extension import _C

    world = dist.group.WORLD
    assert world is not None, "the caller has made it"
    backend = world._get_backend(torch.device("cpu"))
    assert isinstance(backend, _C.Backend), "the caller has made it one of ours"
    return backend.links()


def links_of_job() -> list[JobLink] | None:
    """Makes the group of the job that this process is a rank of, as torchrun started it.

    Returns:
        All links of all ranks on rank 0; None elsewhere.

    Raises:
        RuntimeError: The ranks do not come together.
    """
    import torch.distributed as dist

    dist.init_process_group("freescale")
    rank, size = dist.get_rank(), dist.get_world_size()
    own = [JobLink(rank, *link) for link in _own_links()]
    gathered: list[list[JobLink] | None] | None = [None] * size if rank == 0 else None
    dist.gather_object(own, gathered)
    dist.destroy_process_group()
    if gathered is None:
        return None
    return [link for links in gathered for link in links or []]


if __name__ == "__main__":
    print(json.dumps(asdict(_be_probed(int(sys.argv[1]), sys.argv[2]))))
