"""Every dtype that torch can hold as bytes, through every collective that only moves bytes."""

import pytest
import torch
import torch.distributed as dist

from harness.data import BYTE_DTYPES, arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

SHAPE = (3, 5)


def contents(dtype: torch.dtype, *key: object) -> torch.Tensor:
    return arbitrary(SHAPE, dtype, key=key)


def check_all_to_all(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        rows, columns = SHAPE
        output = poisoned((size * rows, columns), dtype)
        dist.all_to_all_single(output, torch.cat([contents(dtype, rank, p) for p in range(size)]))
        expected = torch.cat([contents(dtype, peer, rank) for peer in range(size)])
        assert_same_bits(output, expected, dtype)


def check_all_to_all_list(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        outputs = [poisoned(SHAPE, dtype) for _ in range(size)]
        dist.all_to_all(outputs, [contents(dtype, rank, peer) for peer in range(size)])
        for peer in range(size):
            assert_same_bits(outputs[peer], contents(dtype, peer, rank), dtype)


def check_all_gather(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        outputs = [poisoned(SHAPE, dtype) for _ in range(size)]
        dist.all_gather(outputs, contents(dtype, rank))
        for peer in range(size):
            assert_same_bits(outputs[peer], contents(dtype, peer), dtype)


def check_all_gather_into_tensor(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        rows, columns = SHAPE
        output = poisoned((size * rows, columns), dtype)
        dist.all_gather_into_tensor(output, contents(dtype, rank))
        expected = torch.cat([contents(dtype, peer) for peer in range(size)])
        assert_same_bits(output, expected, dtype)


def check_broadcast(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        tensor = contents(dtype, "root") if rank == 1 else poisoned(SHAPE, dtype)
        dist.broadcast(tensor, 1)
        assert_same_bits(tensor, contents(dtype, "root"), dtype)


def check_scatter_and_gather(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        output = poisoned(SHAPE, dtype)
        pieces = [contents(dtype, peer) for peer in range(size)] if rank == 0 else None
        dist.scatter(output, pieces, src=0)
        assert_same_bits(output, contents(dtype, rank), dtype)
        outputs = [poisoned(SHAPE, dtype) for _ in range(size)] if rank == 1 else None
        dist.gather(output, outputs, dst=1)
        for peer, gathered in enumerate(outputs or []):
            assert_same_bits(gathered, contents(dtype, peer), dtype)


def check_send(rank: int, size: int, dtypes: list[torch.dtype]) -> None:
    for dtype in dtypes:
        if rank == 0:
            dist.send(contents(dtype, "sent"), 1)
        elif rank == 1:
            received = poisoned(SHAPE, dtype)
            dist.recv(received, 0)
            assert_same_bits(received, contents(dtype, "sent"), dtype)


CHECKS = [
    check_all_to_all,
    check_all_to_all_list,
    check_all_gather,
    check_all_gather_into_tensor,
    check_broadcast,
    check_scatter_and_gather,
    check_send,
]


@pytest.mark.freescale_only
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_all_dtypes(launch: Launcher, check: object) -> None:
    assert callable(check)
    launch(check, 3, BYTE_DTYPES)


@pytest.mark.parametrize(
    "check",
    [check for check in CHECKS if check is not check_all_to_all_list],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_usual_dtypes(launch: Launcher, check: object) -> None:
    assert callable(check)
    launch(check, 2, [torch.float32, torch.float64, torch.int64, torch.uint8])
