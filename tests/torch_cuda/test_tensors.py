"""Tensors in the memory of the stand-in driver: torch's copies move real bytes."""

import pytest
import torch

from harness.data import BYTE_DTYPES, arbitrary, assert_same_bits, poisoned
from harness.launch import RanksFailed
from ranks import Ranks
from stand_in import state


def on_device(contents: torch.Tensor) -> torch.Tensor:
    tensor = contents.cuda()
    assert tensor.device == torch.device("cuda", torch.cuda.current_device())
    return tensor


def go_there_and_back(rank: int, world_size: int) -> None:
    for dtype in BYTE_DTYPES:
        for count in (0, 1, 1000, 300_000):
            contents = arbitrary(count, dtype, key=("round trip", count))
            assert_same_bits(on_device(contents).cpu(), contents, (dtype, count))


def test_round_trip(run_ranks: Ranks) -> None:
    run_ranks(1, go_there_and_back, init=False)


def fill(rank: int, world_size: int) -> None:
    contents = arbitrary((50, 7), key=("fill",))
    tensor = torch.empty(50, 7, device="cuda")
    tensor.copy_(contents)
    clone = tensor.clone()
    tensor.copy_(poisoned((50, 7)))
    assert_same_bits(clone.cpu(), contents, "a clone is a copy")
    clone[10:20].copy_(tensor[10:20])
    expected = contents.clone()
    expected[10:20] = poisoned((10, 7))
    assert_same_bits(clone.cpu(), expected, "a part")
    assert clone[30, 2].item() == contents[30, 2] or contents[30, 2].isnan()


def test_tensors_are_filled_copied_and_sliced(run_ranks: Ranks) -> None:
    run_ranks(1, fill, init=False)


def use_pinned(rank: int, world_size: int) -> None:
    contents = arbitrary(1000, key=("pinned",))
    pinned = contents.pin_memory()
    assert pinned.is_pinned()
    assert not contents.is_pinned()
    back = torch.empty(1000, pin_memory=True)
    back.copy_(on_device(pinned), non_blocking=True)
    torch.cuda.synchronize()
    assert_same_bits(back, contents, "through pinned memory")


def test_pinned_memory(run_ranks: Ranks) -> None:
    run_ranks(1, use_pinned, init=False)


def see_properties(rank: int, world_size: int) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert properties.name == "Stand-in GPU"
    assert torch.cuda.get_device_capability() == (9, 0)
    free, total = torch.cuda.mem_get_info()
    assert total == properties.total_memory
    kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info() == (free - kept.numel(), total)
    assert torch.cuda.memory_allocated() == kept.numel()


def test_devices_have_properties_and_memory(run_ranks: Ranks) -> None:
    run_ranks(1, see_properties, init=False)


def reuse(rank: int, world_size: int) -> None:
    first = torch.empty(1000, device="cuda")
    address = first.data_ptr()
    other = torch.empty(1000, device="cuda")
    assert other.data_ptr() != address
    del first
    assert torch.empty(1000, device="cuda").data_ptr() == address


def test_the_allocator_gives_memory_again(run_ranks: Ranks) -> None:
    run_ranks(1, reuse, init=False)


def map_segments(rank: int, world_size: int) -> None:
    """Memory in two halves, which the allocator maps piece by piece."""
    tensors = []
    for number in range(1, 9):
        contents = arbitrary(number << 20, torch.uint8, key=("expandable", number))
        tensors.append((contents, on_device(contents)))
    for contents, tensor in tensors:
        assert_same_bits(tensor.cpu(), contents, "an expandable segment")
    (segment,) = [one for one in torch.cuda.memory_snapshot() if one["segment_type"] == "large"]
    assert segment["is_expandable"]


def test_expandable_segments(run_ranks: Ranks) -> None:
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    run_ranks(1, map_segments, init=False, environment=environment)


def add(rank: int, world_size: int) -> None:
    tensor = on_device(torch.ones(10))
    done = state().copies_done
    with pytest.raises(RuntimeError, match=r"cannot run kernels.* of .*CUDAFunctor_add<float>"):
        tensor + tensor
    assert state().copies_done == done
    # The error is over with its call.
    assert tensor.cpu().sum() == 10


def test_a_kernel_is_refused_by_name(run_ranks: Ranks) -> None:
    run_ranks(1, add, init=False)


def add_up(rank: int, world_size: int) -> None:
    torch.ones(10, device="cuda")


def test_a_rank_that_launches_a_kernel_fails_with_its_name(run_ranks: Ranks) -> None:
    with pytest.raises(RanksFailed, match=r"rank 0: Traceback(?s:.*)FillFunctor<float>"):
        run_ranks(1, add_up, init=False)
