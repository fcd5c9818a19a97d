"""Options of groups and settings of the environment: used, or refused by name."""

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"priority": "URGENT"}, TypeError, "priority must be a freescale_pg.Priority.*'URGENT'"),
        ({"priority": True}, TypeError, "got True"),
        ({"priority": 3}, ValueError, "priority 3 does not exist.*BACKGROUND=2"),
        ({"aging": 0.1}, TypeError, "aging must be a datetime.timedelta, got 0.1"),
        ({"aging": timedelta(0)}, ValueError, "aging must be longer than zero, got 0:00:00"),
        ({"reductions": "gloo"}, ValueError, "must be 'nccl', 'exchange' or None, got 'gloo'"),
        ({"eager": "no"}, TypeError, "eager must be a bool, got 'no'"),
        ({"ageing": timedelta(1)}, TypeError, "ageing"),
    ],
)
def test_wrong_option(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fs.Options(**wrong)


def test_options_keep_what_they_were_given() -> None:
    options = fs.Options(priority=fs.Priority.LOW, aging=timedelta(milliseconds=30))
    assert options.priority == fs.Priority.LOW
    assert options.aging == timedelta(milliseconds=30)
    assert fs.Options().priority == fs.Priority.NORMAL


def test_options_can_be_copied() -> None:
    options = fs.Options(priority=fs.Priority.LOW, aging=timedelta(milliseconds=30))
    for copied in (copy.copy(options), copy.deepcopy(options)):
        assert copied is not options
        assert copied.priority == fs.Priority.LOW
        assert copied.aging == timedelta(milliseconds=30)


def test_options_can_be_pickled() -> None:
    aging = timedelta(milliseconds=30)
    options = fs.Options(priority=fs.Priority.LOW, aging=aging, reductions="exchange", eager=False)
    sent = pickle.loads(pickle.dumps(options))
    assert (sent.priority, sent.aging) == (fs.Priority.LOW, aging)
    assert repr(sent) == (
        f"Options(priority=Priority.LOW, aging={aging!r}, reductions='exchange', eager=False)"
    )


def check_copied_options(rank: int, size: int) -> None:
    """A copy is as good as what it was made from."""
    options = copy.deepcopy(fs.Options(priority=fs.Priority.URGENT))
    group = dist.new_group(pg_options=options)
    assert group._get_backend(torch.device("cpu")).options.priority == fs.Priority.URGENT


def check_group_cannot_be_pickled(rank: int, size: int) -> None:
    class Holder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.group = dist.group.WORLD

    for thing in (dist.group.WORLD, Holder().__dict__):
        with pytest.raises((TypeError, RuntimeError), match=r"pickle|serializ"):
            pickle.dumps(thing)
    dist.barrier()


def check_options_of_another_backend(rank: int, size: int) -> None:
    for wrong in (dist.ProcessGroupGloo._Options(), {"priority": 1}):
        with pytest.raises(TypeError, match=r"must be freescale_pg.Options, got .*(Gloo|priority)"):
            dist.new_group(pg_options=wrong)


def check_options_are_copied(rank: int, size: int) -> None:
    """One object serves several groups, and later changes to it reach none of them."""
    options = fs.Options(priority=fs.Priority.URGENT)
    first = dist.new_group(pg_options=options, timeout=timedelta(seconds=11))
    second = dist.new_group(pg_options=options, timeout=timedelta(seconds=12))
    options.priority = int(fs.Priority.LOW)
    for group, seconds in ((first, 11), (second, 12)):
        live = group._get_backend(torch.device("cpu")).options
        assert live.priority == fs.Priority.URGENT
        assert live._timeout == timedelta(seconds=seconds)


def check_aging_that_differs(rank: int, size: int) -> None:
    dist.new_group(pg_options=fs.Options(aging=timedelta(milliseconds=100)))
    with pytest.raises(ValueError, match=r"aging.*(30.*100|100.*30)"):
        dist.new_group(pg_options=fs.Options(aging=timedelta(milliseconds=30)))
    dist.barrier()


def check_default_group_options(rank: int, size: int) -> None:
    dist.init_process_group(
        "freescale",
        store=open_store("with options"),
        rank=rank,
        world_size=size,
        pg_options=fs.Options(priority=fs.Priority.HIGH),
    )
    fs.reset_stats()
    dist.all_reduce(torch.ones(1))
    assert [row.priority for row in fs.stats().ops] == ["HIGH"]


def check_environment_error(rank: int, size: int, words: list[str]) -> None:
    try:
        dist.init_process_group(
            "freescale", store=open_store("environment"), rank=rank, world_size=size
        )
    except ValueError as error:
        for word in words:
            assert word in str(error), f"{word} is not in: {error}"
    else:
        raise AssertionError("the environment was accepted")


def check_exchange(rank: int, size: int) -> None:
    for turn in range(4):
        output = torch.empty(size)
        dist.all_to_all_single(output, torch.full((size,), float(rank + turn)))
        assert torch.equal(output, torch.arange(float(size)) + turn)


def test_copied_options(launch: Launcher) -> None:
    launch(check_copied_options, 2)


def test_group_cannot_be_pickled(launch: Launcher) -> None:
    launch(check_group_cannot_be_pickled, 1)


def test_options_of_another_kind(launch: Launcher) -> None:
    launch(check_options_of_another_backend, 1)


def test_group_keeps_a_copy(launch: Launcher) -> None:
    launch(check_options_are_copied, 2)


def test_aging_belongs_to_the_process(launch: Launcher) -> None:
    launch(check_aging_that_differs, 2)


def test_options_of_the_default_group(launch: Launcher) -> None:
    launch(check_default_group_options, 2, init=False)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("FREESCALE_SPINN_US", "5", ["FREESCALE_SPINN_US", "FREESCALE_SPIN_US"]),
        ("FREESCALE_SPIN_US", "soon", ["FREESCALE_SPIN_US", "soon"]),
        ("FREESCALE_SPIN_US", "-1", ["FREESCALE_SPIN_US", "-1"]),
        ("FREESCALE_AGING_MS", "0", ["FREESCALE_AGING_MS", "0"]),
        ("FREESCALE_AGING_MS", "10ms", ["FREESCALE_AGING_MS", "10ms"]),
        ("FREESCALE_FIRST_SEQUENCE", "x", ["FREESCALE_FIRST_SEQUENCE", "x"]),
        ("FREESCALE_POLICY", "all_reduce", ["FREESCALE_POLICY", "all_reduce"]),
        ("FREESCALE_POLICY", "all_reduc=LOW", ["FREESCALE_POLICY", "all_reduc", "all_reduce"]),
        ("FREESCALE_POLICY", "all_reduce:int99=LOW", ["FREESCALE_POLICY", "int99"]),
        ("FREESCALE_POLICY", "all_reduce=SLOW", ["FREESCALE_POLICY", "SLOW", "BACKGROUND"]),
    ],
)
def test_wrong_environment(launch: Launcher, name: str, value: str, words: list[str]) -> None:
    launch(check_environment_error, 1, words, init=False, environment={name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FREESCALE_SPIN_US", "0"),
        ("FREESCALE_SPIN_US", "1000"),
        ("FREESCALE_AGING_MS", "5"),
        # The number of a collective passes the largest value of 16, 32 or 63 bits on the way. The
        # end of 64 bits is 580,000 years of a million calls a second away.
        ("FREESCALE_FIRST_SEQUENCE", str(2**16 - 3)),
        ("FREESCALE_FIRST_SEQUENCE", str(2**32 - 3)),
        ("FREESCALE_FIRST_SEQUENCE", str(2**63 - 3)),
        ("FREESCALE_POLICY", "all_to_all_single=URGENT,all_reduce:float32=LOW"),
        # torch's switch to another layer below c10d, which plug-ins have no part in.
        ("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1"),
    ],
)
def test_environment(launch: Launcher, name: str, value: str) -> None:
    launch(check_exchange, 3, environment={name: value})
