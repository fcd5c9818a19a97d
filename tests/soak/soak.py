"""Long runs: does anything grow, and are messages beyond 4 GiB whole?

    python tests/soak/soak.py                          # what `make soak` runs: minutes, 10 GiB
    python tests/soak/soak.py --parts calls --calls 100000 --ranks 3

Three parts, each on all ranks of the default group:

* *calls*: mixed collectives, random by one seed and checked; descriptors and threads must stay
  what they are, and resident memory must stop growing after the first tenth;
* *groups*: groups made, used and destroyed, with the same demands;
* *large*: a message beyond 4 GiB, and a piece that begins beyond 4 GiB in its tensor.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

GIB = 1 << 30
_SEED = 7
# Resident memory may move by what allocators and Python keep: far less than one leaked message, or
# one leaked record, for each call of a long run.
_ALLOWED_GROWTH = 8 << 20


@dataclass(frozen=True)
class Usage:
    """What this process holds."""

    resident_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Usage:
        gc.collect()
        process = Path("/proc/self")
        pages = int((process / "statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGESIZE"),
            len(list((process / "fd").iterdir())),
            len(list((process / "task").iterdir())),
        )

    def __str__(self) -> str:
        memory = f"{self.resident_bytes / (1 << 20):.1f} MiB"
        return f"{memory}, {self.descriptors} descriptors, {self.threads} threads"


def check_flat(name: str, before: Usage) -> None:
    """Fails when the process holds more than ``before``."""
    now = Usage.now()
    print(f"rank {dist.get_rank()}: {name}: {before} -> {now}", flush=True)
    assert now.descriptors == before.descriptors, f"{name}: descriptors"
    assert now.threads == before.threads, f"{name}: threads"
    grown = now.resident_bytes - before.resident_bytes
    assert grown <= _ALLOWED_GROWTH, f"{name}: memory grew by {grown} bytes"


# --- Calls ----------------------------------------------------------------------------------------


def _all_to_all(count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    # Ragged: what goes from a to b has count + a + 2 b elements, each 10 a + b.
    out_splits = [count + source + 2 * rank for source in range(size)]
    in_splits = [count + rank + 2 * to for to in range(size)]
    given = torch.cat([torch.full((n,), 10.0 * rank + to) for to, n in enumerate(in_splits)])
    got = torch.empty(sum(out_splits))
    dist.all_to_all_single(got, given, out_splits, in_splits)
    for source, piece in enumerate(got.split(out_splits)):
        assert bool((piece == 10.0 * source + rank).all())


def _all_gather(count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(size * count)
    dist.all_gather_into_tensor(got, torch.full((count,), float(rank)))
    assert bool((got.view(size, count) == torch.arange(size).unsqueeze(1)).all())


def _all_reduce(count: int) -> None:
    total = torch.full((count,), 1.0 + dist.get_rank())
    dist.all_reduce(total)
    size = dist.get_world_size()
    assert bool((total == size * (size + 1) / 2).all())


def _broadcast(count: int) -> None:
    root = count % dist.get_world_size()
    tensor = torch.full((count,), float(dist.get_rank()))
    dist.broadcast(tensor, root)
    assert bool((tensor == root).all())


def _exchange_with_neighbours(count: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(count)
    sent = dist.isend(torch.full((count,), float(rank)), (rank + 1) % size)
    received = dist.irecv(got, (rank - 1) % size)
    for work in (sent, received):
        assert work is not None
        work.wait()
    assert bool((got == (rank - 1) % size).all())


def _barrier(count: int) -> None:
    del count
    dist.barrier()


_CALLS: tuple[Callable[[int], None], ...] = (
    _all_to_all,
    _all_gather,
    _all_reduce,
    _broadcast,
    _exchange_with_neighbours,
    _barrier,
)
# Elements: sizes on both sides of what travels with its header, and now and then a large one.
_SIZES = (1, 3, 17, 200, 1500, 2500)
_RARE_SIZE, _RARITY = 200_000, 500


def run_calls(calls: int) -> None:
    """Mixed collectives, the same on every rank."""
    draw = random.Random(_SEED)
    before = None
    for number in range(calls):
        if number == calls // 10:
            before = Usage.now()
        count = _RARE_SIZE if number % _RARITY == 0 else draw.choice(_SIZES)
        draw.choice(_CALLS)(count)
        if before is not None and number % (calls // 5 or 1) == 0:
            check_flat(f"{number} calls", before)
    assert before is not None
    check_flat(f"{calls} calls", before)


# --- Groups ---------------------------------------------------------------------------------------


def run_groups(groups: int) -> None:
    """One group after the other."""
    before = None
    for number in range(groups):
        if number == groups // 10:
            before = Usage.now()
        group = dist.new_group()
        total = torch.ones(100)
        dist.all_reduce(total, group=group)
        assert float(total[0]) == dist.get_world_size()
        dist.destroy_process_group(group)
    assert before is not None
    check_flat(f"{groups} groups", before)


# --- Large messages -------------------------------------------------------------------------------


def _pattern(count: int) -> torch.Tensor:
    """int32, different at every place, so that a shifted or doubled piece shows."""
    return torch.arange(count, dtype=torch.int32) * 1_000_003


def _exchange_large(in_splits: list[int], out_splits: list[int], expected: torch.Tensor) -> None:
    given = _pattern(sum(in_splits))
    got = torch.zeros(sum(out_splits), dtype=torch.int32)
    dist.all_to_all_single(got, given, out_splits, in_splits)
    assert torch.equal(got, expected), "a large exchange is damaged"


def run_large(gib: float) -> None:
    """Rank 0 sends rank 1 more than 4 GiB, and later a piece that lies behind as much."""
    count, little = int(gib * GIB / 4), 1000
    rank, size = dist.get_rank(), dist.get_world_size()
    none = [0] * (size - 2)
    if rank == 0:
        _exchange_large([0, count, *none], [0] * size, torch.zeros(0, dtype=torch.int32))
    else:
        splits = [count if rank == 1 else 0] + [0] * (size - 1)
        _exchange_large([0] * size, splits, _pattern(splits[0]))
    print(f"rank {rank}: a message of {gib} GiB is whole", flush=True)
    if rank == 0:
        own = _pattern(count + little)[:count]
        _exchange_large([count, little, *none], [count] + [0] * (size - 1), own)
    else:
        splits = [little if rank == 1 else 0] + [0] * (size - 1)
        behind = torch.arange(count, count + splits[0]).to(torch.int32) * 1_000_003
        _exchange_large([0] * size, splits, behind)
    print(f"rank {rank}: a piece behind {gib} GiB is whole", flush=True)


# --- The run --------------------------------------------------------------------------------------


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=("calls", "groups", "large"))
    parser.add_argument("--ranks", type=int, default=2, help="2 or more")
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=2000)
    parser.add_argument("--large-gib", type=float, default=4.1, help="needs 2.5 times that memory")
    parser.add_argument("--backend", default="freescale")
    return parser.parse_args()


def _run_as_rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    parts: dict[str, Callable[[], None]] = {
        "calls": lambda: run_calls(options.calls),
        "groups": lambda: run_groups(options.groups),
        "large": lambda: run_large(options.large_gib),
    }
    for name in options.parts or parts:
        begin = time.monotonic()
        parts[name]()
        if dist.get_rank() == 0:
            print(f"{name}: passed in {time.monotonic() - begin:.0f} s", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Runs as one of the ranks when torchrun started this process, else starts them."""
    options = _parse()
    if "RANK" in os.environ:
        _run_as_rank(options)
        return
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, f"--nproc-per-node={options.ranks}", __file__, *sys.argv[1:]]
    raise SystemExit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
