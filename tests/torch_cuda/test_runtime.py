"""Calls of the runtime beside tensors: what torch may make of it, and what it lacks."""

import ctypes

import pytest
import torch

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import RanksFailed
from ranks import Ranks
from stand_in import SUCCESS, Gate, inject

DEFAULT_KIND = 4  # cudaMemcpyDefault
ILLEGAL_ADDRESS = 700
KEPT: list[torch.Tensor] = []
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def runtime(name: str, *arguments: object) -> None:
    """Makes a call of the CUDA runtime, the one that torch makes calls of."""
    function = getattr(ctypes.CDLL(None), name)
    converted = [ctypes.c_size_t(one) if isinstance(one, int) else one for one in arguments]
    assert function(*converted) == SUCCESS


def set_bytes(rank: int, world_size: int) -> None:
    side = torch.cuda.Stream()
    tensor, back = torch.zeros(1000, dtype=torch.uint8).cuda(), torch.zeros(1000).byte()
    back = back.pin_memory()
    side.wait_stream(torch.cuda.current_stream())
    with Gate(side), torch.cuda.stream(side):
        runtime("cudaMemsetAsync", tensor.data_ptr() + 10, 0x5A, 100, side.cuda_stream)
        back.copy_(tensor, non_blocking=True)
        assert not side.query()
    expected = torch.zeros(1000, dtype=torch.uint8)
    expected[10:110] = 0x5A
    assert_same_bits(back, expected, "in the order of the stream")
    runtime("cudaMemset", tensor.data_ptr(), 0, 1000)
    assert_same_bits(tensor.cpu(), torch.zeros(1000, dtype=torch.uint8), "at once")


def test_memory_is_set(run_ranks: Ranks) -> None:
    run_ranks(1, set_bytes, init=False)


def copy_rows(rank: int, world_size: int) -> None:
    """Three columns of seven, in the order of a stream that is held back."""
    contents = arbitrary((50, 7), key=("rows",))
    tensor, result = contents.cuda(), poisoned((50, 3)).pin_memory()
    stream = torch.cuda.current_stream()
    with Gate(stream):
        runtime(
            *("cudaMemcpy2DAsync", result.data_ptr(), 3 * 4, tensor.data_ptr(), 7 * 4),
            *(3 * 4, 50, DEFAULT_KIND, stream.cuda_stream),
        )
        assert_same_bits(result, poisoned((50, 3)), "nothing has arrived")
    assert_same_bits(result, contents[:, :3].contiguous(), "columns")


def test_rows_are_copied(run_ranks: Ranks) -> None:
    run_ranks(1, copy_rows, init=False)


def call_host(rank: int, world_size: int) -> None:
    """A function of the host runs when the stream gets to it."""
    result, seen = poisoned(1000).pin_memory(), []
    tensor = arbitrary(1000, key=("host",)).cuda()
    function = HOST_FUNCTION(lambda argument: seen.append((argument, result.clone())))
    stream = torch.cuda.current_stream()
    with Gate(stream):
        result.copy_(tensor, non_blocking=True)
        runtime("cudaLaunchHostFunc", stream.cuda_stream, function, 7)
        assert not seen
    ((argument, found),) = seen
    assert argument == 7
    assert_same_bits(found, tensor.cpu(), "after the copy")


def test_host_functions_run_in_order(run_ranks: Ranks) -> None:
    run_ranks(1, call_host, init=False)


def lose_context(rank: int, world_size: int) -> None:
    tensor, other = torch.ones(1000).cuda(), torch.ones(1000).pin_memory()
    # torch cannot free pinned memory of a context that is gone, and ends the process over it.
    KEPT.append(other)
    inject("copy_fails", ILLEGAL_ADDRESS)
    tensor.copy_(other, non_blocking=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        tensor.cpu()


def test_a_failed_copy_ends_the_context(run_ranks: Ranks) -> None:
    run_ranks(1, lose_context, init=False, checks_footprint=False)


def capture(rank: int, world_size: int) -> None:
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        pass


def test_what_is_missing_says_its_name(run_ranks: Ranks) -> None:
    missing = (
        r"(?s)CUDA_ERROR_NOT_SUPPORTED.*the stand-in CUDA runtime has no cudaStreamBeginCapture"
    )
    with pytest.raises(RanksFailed, match=missing):
        run_ranks(1, capture, init=False)
