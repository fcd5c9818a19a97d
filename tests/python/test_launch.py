"""The harness itself: a failure of one rank is found, named, and does not hang the suite."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.footprint import Footprint, wait_for_return
from harness.launch import Launcher, RanksFailed


def add_up(rank: int, world_size: int, offset: int) -> float:
    value = torch.tensor([float(rank + offset)])
    dist.all_reduce(value)
    return float(value)


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


def keep_descriptor(rank: int, world_size: int) -> None:
    os.pipe()


def test_values_come_back_by_rank(launch: Launcher) -> None:
    assert launch(add_up, 3, 10) == [33.0, 33.0, 33.0]


def test_file_store(launch: Launcher) -> None:
    assert launch(add_up, 2, 0, store="file") == [1.0, 1.0]


def test_exception_is_reported_with_rank_traceback_and_output(launch: Launcher) -> None:
    with pytest.raises(RanksFailed) as caught:
        launch(raise_on_rank_one, 2, init=False)
    message = str(caught.value)
    assert "rank 1: Traceback" in message
    assert "KeyError: 'what went wrong'" in message
    assert "| a line of output" in message
    assert "rank 0" not in message


def test_death_is_reported(launch: Launcher) -> None:
    with pytest.raises(RanksFailed, match=r"rank 1: ended with exit code -9"):
        launch(die_on_rank_one, 2, init=False)
    assert launch(die_on_rank_one, 2, init=False, dies={1}) == [None, None]


def test_rank_that_should_die_and_lives_is_reported(launch: Launcher) -> None:
    with pytest.raises(RanksFailed, match="rank 0: was to die and lived"):
        launch(die_on_rank_one, 2, init=False, dies={0, 1})


def test_hang_ends_at_the_limit_with_a_stack(launch: Launcher) -> None:
    with pytest.raises(RanksFailed, match=r"(?s)rank 1: still ran after 5 s.*hang_on_rank_one"):
        launch(hang_on_rank_one, 2, init=False, limit=5)


def test_leak_is_reported(launch: Launcher) -> None:
    with pytest.raises(RanksFailed, match=r"left behind after .*: file descriptors"):
        launch(keep_descriptor, 1, init=False, checks_footprint=True, return_limit=0.1)


def test_footprint_sees_descriptors_and_segments() -> None:
    before = Footprint.take()
    segment = os.memfd_create("footprint")
    excess = wait_for_return(before, 0.0)
    os.close(segment)
    assert len(excess) == 1
    assert "memfd:footprint" in excess[0]
    assert wait_for_return(before, 1.0) == []


def test_contents_differ_by_key_and_are_compared_by_bits() -> None:
    tensor = arbitrary(1000, torch.float32, key=(0, "x"))
    assert_same_bits(tensor, arbitrary(1000, torch.float32, key=(0, "x")), "same key")
    with pytest.raises(AssertionError, match=r"other key: .* bytes differ"):
        assert_same_bits(tensor, arbitrary(1000, torch.float32, key=(1, "x")), "other key")
    with pytest.raises(AssertionError, match="poison"):
        assert_same_bits(poisoned(1000), tensor, "poison")
    assert tensor.isnan().any(), "arbitrary bits should include NaN"
