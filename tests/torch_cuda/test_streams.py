"""Streams and events of torch are the stand-in driver's: what is ordered, and what is not."""

import ctypes

import torch

from harness.data import arbitrary, assert_same_bits, poisoned
from ranks import Ranks
from stand_in import Gate, call, set_capturing


def pinned(contents: torch.Tensor) -> torch.Tensor:
    return contents.pin_memory()


def copy_behind_gate(rank: int, world_size: int) -> None:
    contents = arbitrary(1000, key=("held",))
    source, target = pinned(poisoned(1000)), torch.empty(1000, device="cuda")
    back = pinned(poisoned(1000))
    with Gate():
        target.copy_(source, non_blocking=True)
        back.copy_(target, non_blocking=True)
        assert not torch.cuda.current_stream().query()
        assert_same_bits(back, poisoned(1000), "nothing has arrived")
        # The first copy reads when it runs, not when it is called.
        source.copy_(contents)
    assert torch.cuda.current_stream().query()
    assert_same_bits(back, contents, "read when the stream got there")


def test_copies_from_pinned_memory_do_not_wait(run_ranks: Ranks) -> None:
    run_ranks(1, copy_behind_gate, init=False)


def record_behind_gate(rank: int, world_size: int) -> None:
    event = torch.cuda.Event()
    assert event.query(), "never recorded"
    with Gate():
        event.record()
        assert not event.query()
    event.synchronize()
    assert event.query()


def test_an_event_is_over_when_its_stream_got_there(run_ranks: Ranks) -> None:
    run_ranks(1, record_behind_gate, init=False)


def order_by_event(rank: int, world_size: int, waits: bool) -> None:
    """A side stream reads what the current one writes, which is held back."""
    contents, side = arbitrary(1000, key=("order",)), torch.cuda.Stream()
    source, target = pinned(contents), torch.empty(1000, device="cuda")
    result = pinned(poisoned(1000))
    target.copy_(poisoned(1000))
    with Gate() as gate:
        target.copy_(source, non_blocking=True)
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            result.copy_(target, non_blocking=True)
        if waits:
            assert not side.query()
            gate.open()
        side.synchronize()
    assert_same_bits(result, contents if waits else poisoned(1000), "read by the side stream")


def test_events_order_streams(run_ranks: Ranks) -> None:
    run_ranks(1, order_by_event, True, init=False)


def test_streams_without_an_event_have_no_order(run_ranks: Ranks) -> None:
    run_ranks(1, order_by_event, False, init=False)


def compare_handles(rank: int, world_size: int) -> None:
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.current_stream().cuda_stream == 0
    side = torch.cuda.Stream(priority=-3)
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
    priority = ctypes.c_int()
    handle = ctypes.c_void_p(side.cuda_stream)
    call("cuStreamGetPriority", 5050, handle, ctypes.byref(priority))
    assert priority.value == side.priority == -3
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.stream(side):
        set_capturing(side, True)
        assert torch.cuda.is_current_stream_capturing()
        set_capturing(side, False)


def test_a_stream_of_torch_is_one_of_the_driver(run_ranks: Ranks) -> None:
    run_ranks(1, compare_handles, init=False)


def free_behind_gate(rank: int, world_size: int, records: bool) -> None:
    """A side stream still has to read memory whose tensor goes."""
    contents, side = arbitrary(1000, key=("record",)), torch.cuda.Stream()
    tensor, result = contents.cuda(), pinned(poisoned(1000))
    address = tensor.data_ptr()
    side.wait_stream(torch.cuda.current_stream())
    with Gate(side):
        with torch.cuda.stream(side):
            result.copy_(tensor, non_blocking=True)
        if records:
            tensor.record_stream(side)
        del tensor
        following = pinned(poisoned(1000)).cuda()
        torch.cuda.current_stream().synchronize()
        assert (following.data_ptr() == address) != records
    assert_same_bits(result, contents if records else poisoned(1000), "read by the side stream")
    del following
    # Once the side stream is through, the allocator gives the memory away.
    both = [torch.empty(1000, device="cuda") for _ in range(2)]
    assert address in [tensor.data_ptr() for tensor in both]


def test_record_stream_keeps_memory(run_ranks: Ranks) -> None:
    run_ranks(1, free_behind_gate, True, init=False)


def test_memory_that_nobody_recorded_is_given_away(run_ranks: Ranks) -> None:
    run_ranks(1, free_behind_gate, False, init=False)


def measure(rank: int, world_size: int) -> None:
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    with Gate():
        second.record()
    assert first.elapsed_time(second) > 0
    assert second.elapsed_time(first) == -first.elapsed_time(second)


def test_events_tell_times(run_ranks: Ranks) -> None:
    run_ranks(1, measure, init=False)


def copy_from_pageable(rank: int, world_size: int) -> None:
    """Memory that the driver does not know may change as soon as the call returns."""
    contents = arbitrary(1000, key=("pageable",))
    source, target = contents.clone(), torch.empty(1000, device="cuda")
    target.copy_(source, non_blocking=True)
    source.fill_(0)
    assert_same_bits(target.cpu(), contents, "read before the call returned")


def test_copies_from_pageable_memory_are_over_when_they_return(run_ranks: Ranks) -> None:
    run_ranks(1, copy_from_pageable, init=False)
