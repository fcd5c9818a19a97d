"""Reductions of CUDA tensors without NCCL: an exchange, then kernels, which here the host runs."""

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
import host_kernels
from harness.data import assert_same_bits, numbers, poisoned
from ranks import Ranks
from stand_in import Gate

LENGTH = 1000
REDUCED = {
    dist.ReduceOp.SUM: torch.add,
    dist.ReduceOp.PRODUCT: torch.mul,
    dist.ReduceOp.MIN: torch.minimum,
    dist.ReduceOp.MAX: torch.maximum,
}


def exchanging_group() -> dist.ProcessGroup:
    return dist.new_group(pg_options=fs.Options(reductions="exchange"))


def contribution(rank: int, part: int = 0) -> torch.Tensor:
    return numbers(LENGTH, key=(rank, part))


def in_rank_order(op: dist.ReduceOp.RedOpType, world_size: int, part: int = 0) -> torch.Tensor:
    result = contribution(0, part)
    for rank in range(1, world_size):
        result = REDUCED[op](result, contribution(rank, part))
    return result


def reduce_everywhere(rank: int, world_size: int) -> None:
    kernels = host_kernels.provide()
    group = exchanging_group()
    for op in REDUCED:
        tensor = contribution(rank).cuda()
        dist.all_reduce(tensor, op=op, group=group)
        assert_same_bits(tensor.cpu(), in_rank_order(op, world_size), f"all_reduce {op}")
    tensor = contribution(rank).cuda()
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group)
    mean = in_rank_order(dist.ReduceOp.SUM, world_size) / world_size
    assert_same_bits(tensor.cpu(), mean, "all_reduce AVG")
    del kernels


def reduce_to_parts(rank: int, world_size: int) -> None:
    kernels = host_kernels.provide()
    group = exchanging_group()
    op = dist.ReduceOp.SUM

    tensor = contribution(rank).cuda()
    dist.reduce(tensor, dst=1, group=group)
    expected = in_rank_order(op, world_size) if rank == 1 else contribution(rank)
    assert_same_bits(tensor.cpu(), expected, "reduce")

    parts = [contribution(rank, part) for part in range(world_size)]
    expected = in_rank_order(op, world_size, part=rank)
    output = poisoned(LENGTH).cuda()
    dist.reduce_scatter_tensor(output, torch.cat(parts).cuda(), group=group)
    assert_same_bits(output.cpu(), expected, "reduce_scatter_tensor")
    output = poisoned(LENGTH).cuda()
    dist.reduce_scatter(output, [part.cuda() for part in parts], group=group)
    assert_same_bits(output.cpu(), expected, "reduce_scatter")
    del kernels


@pytest.mark.parametrize("body", [reduce_everywhere, reduce_to_parts])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_reductions_without_nccl(
    run_ranks: Ranks, submission: dict[str, str], body: object, world_size: int
) -> None:
    if body is reduce_to_parts and world_size == 1:
        pytest.skip("rank 1 is the root")
    run_ranks(world_size, body, environment=submission)


def reduce_in_stream_order(rank: int, world_size: int, late: int) -> None:
    """What is reduced is what the stream has put there by then, and nothing blocks the host."""
    kernels = host_kernels.provide()
    group = exchanging_group()
    host = contribution(rank).pin_memory()
    tensor = poisoned(LENGTH).cuda()
    torch.cuda.synchronize()
    gate = Gate() if rank == late else None
    tensor.copy_(host, non_blocking=True)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    dist.barrier()  # both have called, and neither has been held up
    assert not work.is_completed()
    dist.barrier()
    if gate is not None:
        gate.open()
    work.wait()
    assert_same_bits(tensor.cpu(), in_rank_order(dist.ReduceOp.SUM, world_size), "in order")
    del kernels


@pytest.mark.parametrize("late", [0, 1])
def test_reductions_are_in_stream_order(
    run_ranks: Ranks, submission: dict[str, str], late: int
) -> None:
    run_ranks(2, reduce_in_stream_order, late, environment=submission)


def wait_twice(rank: int, world_size: int) -> None:
    """The ranks are combined once, whoever waits: a stream, another one, or a future."""
    kernels = host_kernels.provide()
    group = exchanging_group()
    tensor = contribution(rank).cuda()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    future = work.get_future()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work.wait()
        first = tensor.cpu()
    work.wait()
    second = tensor.cpu()
    third = future.wait()[0].cpu()
    expected = in_rank_order(dist.ReduceOp.SUM, world_size)
    for name, result in {"side": first, "second": second, "future": third}.items():
        assert_same_bits(result, expected, name)
    del kernels


def await_future_alone(rank: int, world_size: int) -> None:
    kernels = host_kernels.provide()
    group = exchanging_group()
    tensor = contribution(rank).cuda()
    work = dist.all_reduce(tensor, group=group, async_op=True)
    doubled = work.get_future().then(lambda done: done.value()[0].cpu() * 2)
    expected = in_rank_order(dist.ReduceOp.SUM, world_size) * 2
    assert_same_bits(doubled.wait(), expected, "callback")
    del kernels


@pytest.mark.parametrize("body", [wait_twice, await_future_alone])
def test_the_ranks_are_combined_once(
    run_ranks: Ranks, submission: dict[str, str], body: object
) -> None:
    run_ranks(2, body, environment=submission)


def fail_to_combine(rank: int, world_size: int) -> None:
    """The device has no kernel: the error says whose, and the group goes on."""
    group = exchanging_group()
    tensor = contribution(rank).cuda()
    with pytest.raises(RuntimeError, match=rf"rank {rank}.*all_reduce.*local work.*kernel"):
        dist.all_reduce(tensor, group=group)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    with pytest.raises(RuntimeError, match=r"local work.*kernel"):
        work.get_future().wait()
    gathered = poisoned(LENGTH * world_size).cuda()
    dist.all_gather_into_tensor(gathered, contribution(rank).cuda(), group=group)
    everything = torch.cat([contribution(peer) for peer in range(world_size)])
    assert_same_bits(gathered.cpu(), everything, "after the failure")


def test_a_kernel_that_fails(run_ranks: Ranks, submission: dict[str, str]) -> None:
    run_ranks(2, fail_to_combine, environment=submission)
