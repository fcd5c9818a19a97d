"""Every operation once on two ranks, for a module built with a sanitizer: `make sanitize`.

Not a test module: the sanitizer's runtime has to be in the process before Python itself, so this
is a program that starts its ranks as further programs.
"""

import ctypes
import subprocess
import sys
import tempfile
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

SIZE = 2
LIMIT = 300  # seconds, for both ranks
# Elements: inline, and in many chunks.
COUNTS = (7, 300_000)


# What the runtime has, and what an instrumented module refers to.
SANITIZERS = [("__asan_init", b"__asan_report_load"), ("__tsan_init", b"__tsan_read")]


def require_sanitizer() -> None:
    """An uninstrumented module would pass this program and prove nothing."""
    from freescale_pg import _C

    process, module = ctypes.CDLL(None), Path(_C.__file__).read_bytes()
    found = [mark in module for start, mark in SANITIZERS if hasattr(process, start)]
    assert found, "no runtime of AddressSanitizer or ThreadSanitizer is loaded"
    assert all(found), f"{_C.__file__} is not instrumented"


def values(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32) + 1000 * rank


def exchange(rank: int, count: int) -> None:
    mine = values(rank, SIZE * count)
    received = torch.full((SIZE * count,), -1.0)
    dist.all_to_all_single(received, mine)
    part = slice(rank * count, (rank + 1) * count)
    expected = torch.cat([values(peer, SIZE * count)[part] for peer in range(SIZE)])
    assert torch.equal(received, expected)
    outputs = [torch.full((count,), -1.0) for _ in range(SIZE)]
    dist.all_to_all(outputs, list(mine.chunk(SIZE)))
    assert torch.equal(torch.cat(outputs), expected)


def gather(rank: int, count: int) -> None:
    everything = torch.cat([values(peer, count) for peer in range(SIZE)])
    parts = [torch.full((count,), -1.0) for _ in range(SIZE)]
    dist.all_gather(parts, values(rank, count))
    assert torch.equal(torch.cat(parts), everything)
    whole = torch.full((SIZE * count,), -1.0)
    dist.all_gather_into_tensor(whole, values(rank, count))
    assert torch.equal(whole, everything)
    lists = [[torch.full((count,), -1.0)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [values(rank, count)])
    assert torch.equal(torch.cat([one[0] for one in lists]), everything)


def root(rank: int, count: int) -> None:
    buffer = values(1, count) if rank == 1 else torch.full((count,), -1.0)
    dist.broadcast(buffer, 1)
    assert torch.equal(buffer, values(1, count))
    received = torch.full((count,), -1.0)
    dist.scatter(received, [values(0, count), values(5, count)] if rank == 0 else None, 0)
    assert torch.equal(received, values(5 * rank, count))
    parts = [torch.full((count,), -1.0) for _ in range(SIZE)]
    dist.gather(values(rank, count), parts if rank == 0 else None, 0)
    if rank == 0:
        assert torch.equal(parts[1], values(1, count))


def reduce(rank: int, count: int) -> None:
    total = values(0, count) + values(1, count)
    everywhere = values(rank, count)
    dist.all_reduce(everywhere)
    assert torch.equal(everywhere, total)
    several = [values(rank, count), values(rank, count)]
    dist.all_reduce_coalesced(several)
    assert torch.equal(several[1], total)
    at_root = values(rank, count)
    dist.reduce(at_root, 0)
    if rank == 0:
        assert torch.equal(at_root, total)
    mine = torch.full((count,), -1.0)
    dist.reduce_scatter(mine, [values(rank, count), values(rank, count)])
    assert torch.equal(mine, total)
    mine.fill_(-1)
    dist.reduce_scatter_tensor(mine, values(rank, count).repeat(SIZE))
    assert torch.equal(mine, total)


def coalesced(rank: int, count: int) -> None:
    everything = torch.cat([values(peer, count) for peer in range(SIZE)])
    wholes = [torch.full((SIZE * count,), -1.0) for _ in range(2)]
    with dist._coalescing_manager():
        for whole in wholes:
            dist.all_gather_into_tensor(whole, values(rank, count))
    assert torch.equal(wholes[1], everything)
    parts = [torch.full((count,), -1.0) for _ in range(2)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, values(rank, count).repeat(SIZE))
    assert torch.equal(parts[1], values(0, count) + values(1, count))


def point_to_point(rank: int, count: int) -> None:
    peer = 1 - rank
    received = torch.full((count,), -1.0)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, values(rank, count), peer), dist.P2POp(dist.irecv, received, peer)]
    )
    for work in works:
        work.wait()
    assert torch.equal(received, values(peer, count))
    if rank == 0:
        dist.send(values(0, count), 1, tag=3)
    else:
        received.fill_(-1)
        assert dist.recv(received, None, tag=3) == 0  # from anyone
        assert torch.equal(received, values(0, count))


def mismatch(rank: int) -> None:
    group = dist.new_group()
    try:
        dist.all_reduce(torch.ones(300_000 + rank), group=group)
    except RuntimeError as error:
        assert f"rank {1 - rank}" in str(error), error
    else:
        raise AssertionError("ranks that disagree were not told")


def destroyed_group(rank: int) -> None:
    """One rank leaves a group in which the other one waits."""
    group = dist.new_group()
    pending = (
        dist.all_reduce(torch.ones(300_000), group=group, async_op=True) if rank == 0 else None
    )
    if rank == 1:
        dist.destroy_process_group(group)
    if pending is not None:
        try:
            pending.wait()
        except RuntimeError as error:
            assert "left the group" in str(error), error
        else:
            raise AssertionError("a collective without its other rank came to an end")


def run_rank(rank: int, rendezvous: str) -> None:
    dist.init_process_group(
        "freescale", init_method=f"file://{rendezvous}", rank=rank, world_size=SIZE
    )
    require_sanitizer()
    warnings.simplefilter("ignore", FutureWarning)  # torch renames some of these
    for count in COUNTS:
        for step in (exchange, gather, root, reduce, coalesced, point_to_point):
            step(rank, count)
    dist.barrier()
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60), wait_all_ranks=True)
    mismatch(rank)
    destroyed_group(rank)
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), f"{folder}/rendezvous"])
            for rank in range(SIZE)
        ]
        try:
            codes = [rank.wait(timeout=LIMIT) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    print(f"sanitizer smoke: the ranks ended with {codes}")
    return 0 if codes == [0] * SIZE else 1


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    run_rank(int(sys.argv[1]), sys.argv[2])
