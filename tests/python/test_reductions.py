"""Reductions: right values, and the same bits on every rank and every run."""

import functools
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from harness.data import assert_same_bits, numbers, poisoned
from harness.launch import Launcher

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
Op = dist.ReduceOp

FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
BITWISE = {"BAND", "BOR", "BXOR"}

# Sizes on both sides of what travels inline, and one that is cut into several chunks.
COUNTS = [0, 1, 1000, 100_003]


@functools.cache
def contribution(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    return numbers(count, dtype, key=("reduce", rank, count))


def fold(op: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """The reduction in rank order, in the tensors' own dtype."""
    return functools.reduce(FOLDS[op], parts)


def assert_close(actual: torch.Tensor, parts: list[torch.Tensor], op: str, what: object) -> None:
    """Compares with a calculation in double precision, to the accuracy of the dtype."""
    if not (actual.is_complex() or actual.is_floating_point()):
        assert_same_bits(actual, fold(op, parts), what)
        return
    wide = torch.complex128 if actual.is_complex() else torch.float64
    exact = fold(op, [part.to(wide) for part in parts])
    # Each of the len(parts) steps may round; inputs are around 1.
    tolerance = 4 * len(parts) * torch.finfo(actual.dtype).eps
    close = torch.isclose(actual.to(wide), exact, rtol=tolerance, atol=tolerance)
    assert close.all(), f"{what}: {actual[~close][:3]}, expected {exact[~close][:3]}"


def check_all_reduce(rank: int, size: int) -> list[bytes]:
    results = []
    for op in FOLDS:
        dtypes = INTEGERS if op in BITWISE else INTEGERS + FLOATS
        for dtype in dtypes:
            for count in COUNTS:
                parts = [contribution(dtype, count, peer) for peer in range(size)]
                tensor = parts[rank].clone()
                dist.all_reduce(tensor, getattr(Op, op))
                assert_close(tensor, parts, op, (op, dtype, count))
                results.append(tensor.view(torch.uint8).numpy().tobytes())
    return results


def check_bits_against_fold(rank: int, size: int) -> None:
    """In single and double precision the result is the plain left fold in rank order."""
    for dtype in (torch.float32, torch.float64):
        for op in ("SUM", "PRODUCT", "MIN", "MAX"):
            for count in COUNTS:
                parts = [contribution(dtype, count, peer) for peer in range(size)]
                tensor = parts[rank].clone()
                dist.all_reduce(tensor, getattr(Op, op))
                assert_same_bits(tensor, fold(op, parts), (op, dtype, count))


def check_average(rank: int, size: int) -> None:
    for dtype in FLOATS:
        parts = [contribution(dtype, 1000, peer) for peer in range(size)]
        tensor = parts[rank].clone()
        dist.all_reduce(tensor, Op.AVG)
        assert_close(tensor * size, parts, "SUM", dtype)


def check_scaled_sum(rank: int, size: int) -> None:
    parts = [contribution(torch.float32, 1000, peer) for peer in range(size)]
    tensor = parts[rank].clone()
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.25))
    assert_close(tensor, [part * 0.25 for part in parts], "SUM", "scaled by 0.25")


def check_bool(rank: int, size: int) -> None:
    parts = [contribution(torch.bool, 1000, peer) for peer in range(size)]
    for op in ("BAND", "BOR", "BXOR", "MIN", "MAX"):
        tensor = parts[rank].clone()
        dist.all_reduce(tensor, getattr(Op, op))
        assert_same_bits(tensor, fold(op, parts), op)
    # The sum of truth values is "any of them".
    tensor = parts[rank].clone()
    dist.all_reduce(tensor, Op.SUM)
    assert_same_bits(tensor, fold("BOR", parts), "SUM")


def check_complex(rank: int, size: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        parts = [contribution(dtype, 1000, peer) for peer in range(size)]
        tensor = parts[rank].clone()
        dist.all_reduce(tensor)
        assert_close(tensor, parts, "SUM", dtype)


def check_coalesced(rank: int, size: int) -> None:
    counts = [3, 0, 5000]
    tensors = [contribution(torch.float32, count, rank).clone() for count in counts]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for count, tensor in zip(counts, tensors, strict=True):
        parts = [contribution(torch.float32, count, peer) for peer in range(size)]
        assert_close(tensor, parts, "SUM", count)


def check_reduce(rank: int, size: int) -> None:
    for root in range(size):
        for op in ("SUM", "MAX"):
            for count in COUNTS:
                parts = [contribution(torch.float32, count, peer) for peer in range(size)]
                tensor = parts[rank].clone()
                dist.reduce(tensor, root, getattr(Op, op))
                if rank == root:
                    assert_close(tensor, parts, op, (root, op, count))


def share(count: int, sender: int, receiver: int) -> torch.Tensor:
    return numbers(count, key=("share", sender, receiver, count))


def check_reduce_scatter(rank: int, size: int) -> None:
    for count in COUNTS:
        output = poisoned(count)
        dist.reduce_scatter(output, [share(count, rank, peer) for peer in range(size)])
        assert_close(output, [share(count, peer, rank) for peer in range(size)], "SUM", count)

        output = poisoned(count)
        dist.reduce_scatter_tensor(
            output, torch.cat([share(count, rank, peer) for peer in range(size)]), Op.MAX
        )
        assert_close(output, [share(count, peer, rank) for peer in range(size)], "MAX", count)


def check_uneven_reduce_scatter(rank: int, size: int) -> None:
    counts = [(3 * peer + 1) % 4 for peer in range(size)]
    output = poisoned(counts[rank])
    dist.reduce_scatter(output, [share(counts[peer], rank, peer) for peer in range(size)])
    parts = [share(counts[rank], peer, rank) for peer in range(size)]
    assert_close(output, parts, "SUM", counts)


def check_reduce_scatter_into_stack(rank: int, size: int) -> None:
    output = poisoned(5)
    dist.reduce_scatter_tensor(output, torch.stack([share(5, rank, peer) for peer in range(size)]))
    assert_close(output, [share(5, peer, rank) for peer in range(size)], "SUM", "stacked")


def check_coalesced_reduce_scatter(rank: int, size: int) -> None:
    counts = [3, 2000]
    outputs = [poisoned(count) for count in counts]
    with dist._coalescing_manager(async_ops=True) as manager:
        for count, output in zip(counts, outputs, strict=True):
            pieces = [share(count, rank, peer) for peer in range(size)]
            dist.reduce_scatter_tensor(output, torch.cat(pieces))
    manager.wait()
    for count, output in zip(counts, outputs, strict=True):
        parts = [share(count, peer, rank) for peer in range(size)]
        assert_close(output, parts, "SUM", count)


def check_average_reduce_scatter(rank: int, size: int) -> None:
    output = poisoned(1000)
    pieces = [share(1000, rank, peer) for peer in range(size)]
    dist.reduce_scatter_tensor(output, torch.cat(pieces), Op.AVG)
    parts = [share(1000, peer, rank) for peer in range(size)]
    assert_close(output * size, parts, "SUM", "average")


def check_special_values(rank: int, size: int) -> None:
    """NaN and infinity win or lose as they do in ATen."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    parts = [special.roll(peer) for peer in range(size)]
    for op in ("SUM", "MIN", "MAX"):
        tensor = parts[rank].clone()
        dist.all_reduce(tensor, getattr(Op, op))
        assert torch.equal(tensor.isnan(), fold(op, parts).isnan()), op
        finite = ~tensor.isnan()
        assert torch.equal(tensor[finite], fold(op, parts)[finite]), op


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_all_reduce_gives_every_rank_and_run_the_same_bits(launch: Launcher, size: int) -> None:
    first = launch(check_all_reduce, size)
    assert all(results == first[0] for results in first)
    if size == 3:
        assert launch(check_all_reduce, size) == first


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_reduce_folds_in_rank_order(launch: Launcher, size: int) -> None:
    launch(check_bits_against_fold, size)


@pytest.mark.parametrize("size", [1, 3])
def test_average(launch: Launcher, size: int) -> None:
    launch(check_average, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [1, 3])
def test_scaled_sum(launch: Launcher, size: int) -> None:
    launch(check_scaled_sum, size)


@pytest.mark.freescale_only
def test_bool(launch: Launcher) -> None:
    launch(check_bool, 3)


def test_complex(launch: Launcher) -> None:
    launch(check_complex, 3)


@pytest.mark.parametrize("size", [1, 3])
def test_coalesced_all_reduce(launch: Launcher, size: int) -> None:
    launch(check_coalesced, size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_reduce(launch: Launcher, size: int) -> None:
    launch(check_reduce, size)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9])
def test_reduce_scatter(launch: Launcher, size: int) -> None:
    launch(check_reduce_scatter, size)


@pytest.mark.freescale_only
@pytest.mark.parametrize("size", [2, 3, 5])
def test_reduce_scatter_of_different_sizes(launch: Launcher, size: int) -> None:
    launch(check_uneven_reduce_scatter, size)


@pytest.mark.freescale_only
def test_reduce_scatter_of_stacked_tensor(launch: Launcher) -> None:
    launch(check_reduce_scatter_into_stack, 3)


@pytest.mark.parametrize("size", [1, 3])
def test_coalesced_reduce_scatter(launch: Launcher, size: int) -> None:
    launch(check_coalesced_reduce_scatter, size)


@pytest.mark.parametrize("size", [1, 3])
def test_average_reduce_scatter(launch: Launcher, size: int) -> None:
    launch(check_average_reduce_scatter, size)


@pytest.mark.freescale_only
def test_nan_and_infinity(launch: Launcher) -> None:
    launch(check_special_values, 3)
