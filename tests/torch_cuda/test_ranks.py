"""The harness itself: what a rank with a device leaves behind is found, and its failure named."""

import ctypes
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from harness.launch import RanksFailed
from ranks import Ranks
from stand_in import call

KEPT: list[object] = []


def keep_tensor(rank: int, world_size: int) -> None:
    KEPT.append(torch.ones(1000).cuda())


def keep_stream(rank: int, world_size: int) -> None:
    handle = ctypes.c_void_p()
    call("cuStreamCreateWithPriority", 5050, ctypes.byref(handle), 1, 0)


def keep_nothing(rank: int, world_size: int) -> None:
    torch.ones(5_000_000).pin_memory().cuda(non_blocking=True)


def raise_on_rank_one(rank: int, world_size: int) -> None:
    if rank == 1:
        print("a line of output")
        raise KeyError("what went wrong")


def die_on_rank_one(rank: int, world_size: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def hang_on_rank_one(rank: int, world_size: int) -> None:
    if rank == 1:
        time.sleep(1000)


def test_memory_that_is_kept_is_reported(run_ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match=r"left behind: .*memfd:device-memory"):
        run_ranks(1, keep_tensor, init=False, return_limit=0.1)
    run_ranks(1, keep_nothing, init=False)


def test_a_stream_that_is_kept_is_reported(run_ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match="left behind: 1 streams"):
        run_ranks(1, keep_stream, init=False)


def test_a_failure_is_reported_with_rank_traceback_and_output(run_ranks: Ranks) -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(2, raise_on_rank_one, init=False)
    message = str(caught.value)
    assert "rank 1: Traceback" in message
    assert "KeyError: 'what went wrong'" in message
    assert "| a line of output" in message
    assert "rank 0" not in message


def test_death_is_reported(run_ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match=r"rank 1: ended with exit code -9"):
        run_ranks(2, die_on_rank_one, init=False)


def test_a_hang_ends_at_the_limit_with_a_stack(run_ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match=r"(?s)rank 1: still ran after 10 s.*hang_on_rank_one"):
        run_ranks(2, hang_on_rank_one, init=False, limit=10)


def add_up(rank: int, world_size: int) -> list[float]:
    """With torch's own backend, which stages CUDA tensors through pinned memory."""
    tensor = torch.tensor([float(rank)]).cuda()
    dist.all_reduce(tensor)
    everything = [torch.empty(1, device="cuda") for _ in range(world_size)]
    dist.all_gather(everything, tensor)
    return [float(part) for part in everything]


def test_ranks_form_a_group(run_ranks: Ranks) -> None:
    assert run_ranks(3, add_up, backend="gloo") == [[3.0, 3.0, 3.0]] * 3


def add_up_on_cpu(rank: int, world_size: int) -> float:
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor)
    return float(tensor)


def test_one_module_serves_both_builds_of_torch(run_ranks: Ranks) -> None:
    """It was built with a torch that has no CUDA."""
    assert run_ranks(3, add_up_on_cpu, backend="freescale") == [3.0, 3.0, 3.0]
