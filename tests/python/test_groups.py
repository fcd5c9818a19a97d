"""Making, splitting, using and destroying groups."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher
from harness.rank import open_store

TIMEOUT = timedelta(seconds=60)


def exchange(group: dist.ProcessGroup | None, salt: object) -> None:
    """One all_to_all_single in a group, with contents that depend on the global ranks in it."""
    members = dist.get_process_group_ranks(group)
    me = dist.get_rank()
    output = poisoned(3 * len(members))
    given = torch.cat([arbitrary(3, key=(salt, me, peer)) for peer in members])
    dist.all_to_all_single(output, given, group=group)
    expected = torch.cat([arbitrary(3, key=(salt, peer, me)) for peer in members])
    assert_same_bits(output, expected, (salt, members))


def check_subgroups(rank: int, size: int) -> None:
    rank_lists = [[0, 1], [1, 2, 3], [3], [3, 0, 2], list(range(size))]
    groups = [dist.new_group(ranks) for ranks in rank_lists]
    for number, (ranks, group) in enumerate(zip(rank_lists, groups, strict=True)):
        if rank in ranks:
            assert dist.get_rank(group) == sorted(ranks).index(rank)
            assert dist.get_world_size(group) == len(ranks)
            exchange(group, number)
    exchange(None, "default group")


def check_unused_group_of_others(rank: int, size: int) -> None:
    group = dist.new_group([1, 2])
    if rank == 0:
        assert group == dist.GroupMember.NON_GROUP_MEMBER
    else:
        exchange(group, "two of three")
    dist.barrier()


def check_hundreds(rank: int, size: int) -> None:
    kept = []
    for number in range(200):
        group = dist.new_group()
        exchange(group, number)
        if number % 50 == 0:
            kept.append(group)
        else:
            dist.destroy_process_group(group)
    for number, group in enumerate(kept):
        exchange(group, ("kept", number))
    exchange(None, "default group")


def check_many_at_once(rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(100)]
    for number, group in reversed(list(enumerate(groups))):
        exchange(group, number)


def check_mesh(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    exchange(mesh.get_group("row"), "row")
    exchange(mesh.get_group("column"), "column")


def check_again(rank: int, size: int, backend: str) -> None:
    """The default group can be destroyed and made anew in one process."""
    for number in range(5):
        store = open_store(f"round {number}")
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
        exchange(None, number)
        dist.destroy_process_group()


def check_split(rank: int, size: int) -> None:
    """Splits of a group, and of a split. torch passes ranks names that may differ between them."""
    world = dist.group.WORLD
    for number in range(3):
        mine = [[0, 1], [2, 3]][rank // 2]
        part = world.split_group(
            mine, timeout=TIMEOUT, group_name=f"part {number} of {mine}", group_desc="part"
        )
        assert part.size() == 2
        assert part.rank() == rank % 2
        tensor = torch.tensor([float(rank)])
        part.allreduce([tensor]).wait()
        assert float(tensor) == sum(mine)
        single = part.split_group([part.rank()], timeout=TIMEOUT, group_name=f"alone {number}")
        single.allreduce([tensor]).wait()
        assert float(tensor) == sum(mine)
    absent = world.split_group([1, 3], timeout=TIMEOUT, group_name="odd")
    assert (absent is None) == (rank % 2 == 0)
    exchange(None, "default group after splits")


def check_split_with_other_names(rank: int, size: int) -> None:
    """torch hashes a counter of the process into the child's name: it may differ between ranks."""
    part = dist.group.WORLD.split_group(
        list(range(size)), timeout=TIMEOUT, group_name=f"name that only rank {rank} has"
    )
    tensor = torch.tensor([rank + 1.0])
    part.allreduce([tensor]).wait()
    assert float(tensor) == size * (size + 1) / 2


def check_backend_name(rank: int, size: int) -> None:
    """Groups must not call themselves "custom": TorchRec takes that for a fake of its tests."""
    assert dist.get_backend() == "freescale"
    groups = [
        dist.group.WORLD,
        dist.new_group(),
        dist.new_group(backend="freescale"),
        dist.new_group(backend="cpu:freescale"),
        dist.group.WORLD.split_group(list(range(size)), timeout=TIMEOUT, group_name="split"),
    ]
    for group in groups:
        assert group._get_backend_name() != "custom"
        assert group._get_backend(torch.device("cpu")).name() == "freescale"
        tensor = torch.tensor([1.0])
        group.allreduce([tensor]).wait()
        assert float(tensor) == size
        group.barrier().wait()


def check_gloo_beside_us(rank: int, size: int) -> None:
    """Groups of both backends in one process, whichever is the default."""
    other = "gloo" if "freescale" in dist.get_backend() else "freescale"
    for backend in (other, f"cpu:{other}"):
        group = dist.new_group(backend=backend)
        exchange(group, backend)
        dist.barrier(group)
        exchange(None, "default group")
        dist.destroy_process_group(group)


def check_debug_wrapper(rank: int, size: int) -> None:
    exchange(None, "with torch's checks around every call")
    group = dist.new_group()
    exchange(group, "subgroup")
    assert group._get_backend_name() != "custom"


def check_nine(rank: int, size: int) -> None:
    exchange(None, "nine ranks")
    group = dist.new_group([8, 0, 4])
    if rank % 4 == 0:
        exchange(group, "three of nine")


@pytest.mark.parametrize("store", ["tcp", "file"])
def test_subgroups(launch: Launcher, store: str) -> None:
    launch(check_subgroups, 4, store=store)


def test_rank_outside_of_a_group(launch: Launcher) -> None:
    launch(check_unused_group_of_others, 3)


@pytest.mark.parametrize("size", [2, 4])
def test_groups_made_and_destroyed_by_the_hundred(launch: Launcher, size: int) -> None:
    launch(check_hundreds, size)


def test_many_groups_at_once(launch: Launcher) -> None:
    launch(check_many_at_once, 2)


def test_mesh_of_two_dimensions(launch: Launcher) -> None:
    launch(check_mesh, 4)


def test_default_group_again_and_again(launch: Launcher, backend: str) -> None:
    launch(check_again, 2, backend, init=False)


@pytest.mark.freescale_only
def test_split(launch: Launcher) -> None:
    launch(check_split, 4)


@pytest.mark.freescale_only
def test_split_under_names_that_differ(launch: Launcher) -> None:
    launch(check_split_with_other_names, 2)


@pytest.mark.freescale_only
def test_backend_name(launch: Launcher) -> None:
    launch(check_backend_name, 2)


@pytest.mark.freescale_only
@pytest.mark.parametrize("default", ["freescale", "gloo", "cpu:gloo", "cpu:freescale"])
def test_beside_gloo(launch: Launcher, default: str) -> None:
    launch(check_gloo_beside_us, 2, backend=default, checks_footprint=False)


@pytest.mark.freescale_only
def test_with_torch_debug_checks(launch: Launcher) -> None:
    environment = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    launch(check_debug_wrapper, 2, environment=environment, checks_footprint=False)


def test_nine_ranks(launch: Launcher) -> None:
    launch(check_nine, 9)
