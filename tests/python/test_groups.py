"""Making, splitting, using and destroying groups."""

import os
import resource
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.footprint import Footprint
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


def check_few_descriptors(rank: int, size: int) -> None:
    """Groups give back what they take: a job may make one in each epoch."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(Footprint.take().descriptors) + 16, most))
    for number in range(100):
        group = dist.new_group()
        exchange(group, number)
        dist.destroy_process_group(group)


def check_memory(rank: int, size: int) -> tuple[int, int]:
    """Resident bytes that a group costs which has been destroyed, and keys left in the store."""
    store = dist.group.WORLD.get_group_store()

    def make(count: int) -> tuple[int, int]:
        for _ in range(count):
            group = dist.new_group()
            dist.all_reduce(torch.ones(3), group=group)
            dist.destroy_process_group(group)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize(), store.num_keys()

    warm, _ = make(100)
    later, keys = make(400)
    return (later - warm) // 400, keys


def check_meshes(rank: int, size: int) -> None:
    """A mesh that leaves ranks out, then one of two dimensions with all."""
    part = init_device_mesh("cpu", (size - 3,))
    if rank < size - 3:
        exchange(part.get_group(), "part")
    whole = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("row", "column"))
    exchange(whole.get_group("row"), "row")
    exchange(whole.get_group("column"), "column")


def check_permuted_mesh(rank: int, size: int) -> None:
    """Slices follow the ranks in the group, whatever the order in which a mesh lists them."""
    mesh = DeviceMesh("cpu", torch.tensor([[5, 2], [1, 4]]))
    if rank not in (5, 2, 1, 4):
        return
    for dimension in range(2):
        group = mesh.get_group(dimension)
        members = dist.get_process_group_ranks(group)
        assert dist.get_rank(group) == members.index(rank)
        output = poisoned(len(members))
        given = torch.tensor([100.0 * rank + peer for peer in members])
        dist.all_to_all_single(output, given, group=group)
        expected = torch.tensor([100.0 * peer + rank for peer in members])
        assert_same_bits(output, expected, (dimension, members))


def check_sources_in_a_subgroup(rank: int, size: int) -> None:
    """The root by its global rank, and by its rank in a group without global rank 0."""
    group = dist.new_group([2, 3])
    if rank < 2:
        return
    for root in (2, 3):
        for name in ({"src": root}, {"group_src": root - 2}):
            tensor = torch.full((3,), float(rank))
            dist.broadcast(tensor, group=group, **name)
            assert_same_bits(tensor, torch.full((3,), float(root)), name)
            pieces = [torch.full((3,), 10.0 * root + member) for member in range(2)]
            dist.scatter(tensor, pieces if rank == root else None, group=group, **name)
            assert_same_bits(tensor, pieces[rank - 2], name)
            things = [("from", root)] if rank == root else [None]
            dist.broadcast_object_list(things, group=group, **name)
            assert things == [("from", root)]


def check_part_on_another_backend(rank: int, size: int, backend: str) -> None:
    """Ranks outside do nothing for it, and the default group goes on."""
    group = dist.new_group([0, 2], backend=backend)
    if rank != 1:
        exchange(group, backend)
    exchange(None, "default group")


def check_capabilities(rank: int, size: int) -> None:
    """What torch asks a backend, by the names it uses."""
    group = dist.group.WORLD
    backend = group._get_backend(torch.device("cpu"))
    assert backend.name() == "freescale"
    assert backend.supports_splitting
    assert backend.supports_coalescing
    assert backend.options is not None
    assert (backend.rank(), backend.size()) == (rank, size)
    assert group.bound_device_id is None
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    assert backend._get_sequence_number_for_group() == before + 1


def check_backend_per_device(rank: int, size: int) -> None:
    """A plug-in for another device does not get our calls, and we not its."""
    created = []

    def create(request: object, options: object) -> object:
        created.append(FakeProcessGroup._create_internal(rank, size))
        return created[-1]

    dist.Backend.register_backend("other", create, extended_api=True, devices=["cuda"])
    dist.init_process_group(
        "cpu:freescale,cuda:other", store=open_store("both"), rank=rank, world_size=size
    )
    group = dist.group.WORLD
    assert group._get_backend(torch.device("cpu")).name() == "freescale"
    assert group._get_backend(torch.device("cuda")) is created[0]
    exchange(None, "cpu")


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


def test_groups_give_their_descriptors_back(launch: Launcher) -> None:
    launch(check_few_descriptors, 2)


def test_groups_give_their_memory_back(launch: Launcher) -> None:
    for bytes_per_group, keys in launch(check_memory, 2):
        # Names and numbers that torch itself remembers; one link alone would be two megabytes.
        assert bytes_per_group < 10_000
        assert keys < 10_000


def test_meshes_with_and_without_all_ranks(launch: Launcher) -> None:
    launch(check_meshes, 8)


def test_mesh_in_another_order(launch: Launcher) -> None:
    launch(check_permuted_mesh, 6)


def test_sources_in_a_subgroup(launch: Launcher) -> None:
    launch(check_sources_in_a_subgroup, 4)


@pytest.mark.freescale_only
@pytest.mark.parametrize(("default", "other"), [("freescale", "gloo"), ("gloo", "freescale")])
def test_part_on_another_backend(launch: Launcher, default: str, other: str) -> None:
    launch(check_part_on_another_backend, 3, other, backend=default, checks_footprint=False)


@pytest.mark.freescale_only
def test_capabilities(launch: Launcher) -> None:
    launch(check_capabilities, 2)


@pytest.mark.freescale_only
def test_backend_per_device(launch: Launcher) -> None:
    launch(check_backend_per_device, 2, init=False)


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


def check_crowd(rank: int, size: int) -> None:
    exchange(None, "many ranks")
    total = torch.ones(1000)
    dist.all_reduce(total)
    assert_same_bits(total, torch.full((1000,), float(size)), "all_reduce")


@pytest.mark.parametrize("size", [16, 23])
def test_more_ranks_than_cores(launch: Launcher, size: int) -> None:
    launch(check_crowd, size)


def check_one_core(rank: int, size: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for number in range(200):
        exchange(None, number % 7)


def test_ranks_that_share_one_core(launch: Launcher) -> None:
    launch(check_one_core, 8)
