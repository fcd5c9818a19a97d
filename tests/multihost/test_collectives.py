"""Every collective between hosts: with values computed by each rank itself, from bodies of
``tests/python`` where those have what is asked, on gloo too where it has the operation."""

import itertools
import os
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import freescale_pg as fs
import test_all_gather
import test_all_to_all
import test_async
import test_dtypes
import test_functional_collectives
import test_groups
import test_layouts
import test_monitored_barrier
import test_objects
import test_point_to_point
import test_priorities
import test_reductions
import test_rooted
import test_sizes
from harness.data import BYTE_DTYPES, arbitrary, assert_same_bits, numbers, poisoned
from launcher import Ranks
from network import HostPlan, Network

Networks = Callable[[int], Network]
Body = Callable[[int, int], object]

MIB = 1 << 20
# Ranks on each host, besides two on each of two.
LAYOUTS = [(1, 1), (3, 3), (1, 1, 1)]
UNEVEN = [(2, 1), (3, 2), (1, 4)]
USUAL = [torch.float32, torch.float64, torch.int64, torch.uint8]
LARGE = [0, 4 * MIB + 1, 32 * MIB]
ROW_LIMIT = 300.0  # seconds


# --- Bodies that only make sense between hosts, or are too large for one --------------------------


def check_large_all_to_all(rank: int, size: int) -> None:
    """Bytes of the whole tensor, give or take what does not divide by the ranks."""
    for count in (total // size for total in LARGE):
        given = torch.cat([contents(count, rank, peer) for peer in range(size)])
        output = poisoned(size * count, torch.uint8)
        dist.all_to_all_single(output, given)
        expected = torch.cat([contents(count, peer, rank) for peer in range(size)])
        assert_same_bits(output, expected, count)


def check_large_all_gather(rank: int, size: int) -> None:
    for count in (total // size for total in LARGE):
        output = poisoned(size * count, torch.uint8)
        dist.all_gather_into_tensor(output, contents(count, rank))
        expected = torch.cat([contents(count, peer) for peer in range(size)])
        assert_same_bits(output, expected, count)


def check_large_reductions(rank: int, size: int) -> None:
    for count in (total // size // 8 for total in LARGE):
        # Of whole numbers, so that the order of the additions does not matter.
        parts = [contents(size * count, peer).to(torch.float64) for peer in range(size)]
        expected = torch.stack(parts).sum(dim=0)
        tensor = parts[rank].clone()
        dist.all_reduce(tensor)
        assert_same_bits(tensor, expected, count)
        share = torch.full((count,), -1.0, dtype=torch.float64)
        dist.reduce_scatter_tensor(share, parts[rank])
        assert_same_bits(share, expected[rank * count : (rank + 1) * count], count)


def check_large_messages(rank: int, size: int) -> None:
    """From each rank to the next, which may be on the same host or not, and from one to all."""
    following, previous = (rank + 1) % size, (rank - 1) % size
    for count in LARGE:
        received = poisoned(count, torch.uint8)
        works = [dist.irecv(received, previous), dist.isend(contents(count, rank), following)]
        for work in works:
            assert work is not None
            work.wait()
        assert_same_bits(received, contents(count, previous), count)
        tensor = contents(count, "root") if rank == size - 1 else poisoned(count, torch.uint8)
        dist.broadcast(tensor, size - 1)
        assert_same_bits(tensor, contents(count, "root"), count)


def contents(count: int, *key: object) -> torch.Tensor:
    return arbitrary(count, torch.uint8, key=("between hosts", *key))


def check_groups_across_hosts(rank: int, size: int) -> None:
    """Subsets: one rank of each host, all of one host, all but the first rank, two far apart."""
    hosts: list[int] = [0] * size
    dist.all_gather_object(hosts, int(os.environ["GROUP_RANK"]))
    by_host = {host: [r for r in range(size) if hosts[r] == host] for host in set(hosts)}
    rank_lists = [
        [ranks[0] for ranks in by_host.values()],
        [ranks[-1] for ranks in by_host.values()],
        *by_host.values(),
        list(range(1, size)),
        sorted({0, size - 1}),
    ]
    groups = [dist.new_group(ranks) for ranks in rank_lists]
    for number, (ranks, group) in enumerate(zip(rank_lists, groups, strict=True)):
        if rank in ranks:
            test_groups.exchange(group, number)
            check_in_group(rank, ranks, group)
    dist.barrier()


def check_in_group(rank: int, ranks: list[int], group: dist.ProcessGroup) -> None:
    tensor = torch.tensor([rank + 1])
    dist.all_reduce(tensor, group=group)
    assert int(tensor) == sum(ranks) + len(ranks)
    for root in ranks:
        tensor = contents(50_000, root) if rank == root else poisoned(50_000, torch.uint8)
        dist.broadcast(tensor, root, group=group)
        assert_same_bits(tensor, contents(50_000, root), (ranks, root))
    outputs = [poisoned(100, torch.uint8) for _ in ranks]
    dist.all_gather(outputs, contents(100, rank), group=group)
    for peer, output in zip(ranks, outputs, strict=True):
        assert_same_bits(output, contents(100, peer), (ranks, peer))


def check_priorities_in_flight(rank: int, size: int) -> None:
    """Many at once, small and large, at all levels; groups begin in another order on each rank."""
    levels = list(fs.Priority)
    groups = [dist.new_group() for _ in levels]
    flights = []
    for turn, count in itertools.product(range(3), (1, 3000, 200_000)):
        for step in range(len(levels)):
            number = (step + rank) % len(levels)
            key = (turn, number)
            output = poisoned(size * count)
            work = fs.all_to_all_single(
                output,
                torch.cat([arbitrary(count, key=(key, rank, peer)) for peer in range(size)]),
                group=groups[number],
                priority=levels[number],
                async_op=True,
            )
            expected = torch.cat([arbitrary(count, key=(key, peer, rank)) for peer in range(size)])
            flights.append((work, output, expected))
    for work, output, expected in reversed(flights):
        assert work is not None
        work.wait()
        assert_same_bits(output, expected, "in flight")


def check_data_parallel_training(rank: int, size: int) -> None:
    """Two steps on parts of a batch are two steps on the whole, but for rounding."""
    alone, parallel = make_model(), DistributedDataParallel(make_model())
    for step in range(2):
        batches = [numbers((6, 16), torch.float64, key=(step, peer)) for peer in range(size)]
        take_step(alone, torch.cat(batches))
        take_step(parallel, batches[rank])
    for ours, theirs in zip(parallel.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    # The second layer alone fills a bucket of gradients; its elements are 8 bytes.
    layers = [nn.Linear(16, 500), nn.ReLU(), nn.Linear(500, 500), nn.ReLU(), nn.Linear(500, 4)]
    return nn.Sequential(*layers).to(torch.float64)


def take_step(model: nn.Module, batch: torch.Tensor) -> None:
    model.zero_grad()
    model(batch).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.1)


# --- Tables ---------------------------------------------------------------------------------------


def bodies(of: ModuleType, *names: str) -> dict[str, Body]:
    """Bodies of a module of ``tests/python``, under names that say from which."""
    prefix = of.__name__.removeprefix("test_")
    return {f"{prefix}-{name}": getattr(of, f"check_{name}") for name in names}


# For all layouts.
ANY = {
    **bodies(test_all_to_all, "single", "single_without_splits", "id_exchange"),
    **bodies(test_all_gather, "list", "into_tensor", "coalesced"),
    **bodies(test_reductions, "average", "complex", "coalesced", "reduce", "reduce_scatter"),
    **bodies(test_reductions, "coalesced_reduce_scatter"),
    **bodies(test_rooted, "broadcast", "scatter", "gather", "async_barrier"),
    **bodies(test_point_to_point, "ring", "any_source", "batch"),
    **bodies(test_async, "all_kinds_at_once"),
    "large_all_to_all": check_large_all_to_all,
    "large_all_gather": check_large_all_gather,
    "large_reductions": check_large_reductions,
    "large_messages": check_large_messages,
    "groups_across_hosts": check_groups_across_hosts,
    "priorities_in_flight": check_priorities_in_flight,
    "data_parallel_training": check_data_parallel_training,
}
# The same; gloo has not all of it.
ANY_OURS = {
    **bodies(test_all_to_all, "list", "list_of_shapes"),
    **bodies(test_all_gather, "uneven_list", "into_stack"),
    **bodies(test_reductions, "bits_against_fold", "scaled_sum", "bool", "special_values"),
    **bodies(test_reductions, "uneven_reduce_scatter", "reduce_scatter_into_stack"),
    **bodies(test_priorities, "opposite_orders", "same_op_at_different_priorities"),
}
# For one rank on each of two hosts.
PAIR = {
    **bodies(test_point_to_point, "receive_first", "order", "tags"),
    **bodies(test_objects, "send"),
    **bodies(test_sizes, "send"),
}
# For two ranks on each of two hosts: what needs four, and what takes its time.
FOUR = {
    **bodies(test_all_to_all, "kinds_of_splits"),
    **bodies(test_groups, "subgroups", "sources_in_a_subgroup", "mesh", "many_at_once"),
    **bodies(test_point_to_point, "in_subgroup"),
    **bodies(test_objects, "all_gather", "broadcast", "gather", "scatter"),
    **bodies(test_functional_collectives, "functional", "nn_functional"),
    **bodies(test_sizes, "all_to_all", "mixed_all_to_all", "all_gather", "broadcast", "all_reduce"),
    **bodies(test_sizes, "misaligned", "repeated"),
    **bodies(test_async, "order_of_waits", "wait_in_threads", "call_in_threads", "polling"),
    **bodies(test_async, "dropped_tensors"),
}
FOUR_OURS = {
    **bodies(test_async, "future"),
    **bodies(test_functional_collectives, "nn_lists"),
    **bodies(test_groups, "hundreds"),
    **bodies(test_layouts, "all_to_all", "all_gather", "rooted", "all_reduce", "reduce_scatter"),
    **bodies(test_monitored_barrier, "everybody_comes"),
    **bodies(test_priorities, "background_is_not_starved"),
    **bodies(test_reductions, "all_reduce"),
}
DTYPES = {check.__name__.removeprefix("check_"): check for check in test_dtypes.CHECKS}


def named(table: dict[str, Body], *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(body, id=name, marks=marks) for name, body in table.items()]


def layout_id(layout: tuple[int, ...]) -> str:
    return f"{len(layout)}x{layout[0]}" if len(set(layout)) == 1 else "+".join(map(str, layout))


def run(networks: Networks, ranks: Ranks, layout: tuple[int, ...], body: Body, **how: str) -> None:
    __tracebackhide__ = True
    ranks(networks(len(layout)), layout, body, **how)


def check_in_a_row(rank: int, size: int, table: dict[str, Body]) -> None:
    for name, body in table.items():
        try:
            body(rank, size)
        except Exception as error:
            raise AssertionError(f"in {name}") from error
        # A body that receives from anyone must not get what the next one sends.
        dist.barrier()


# In other layouts one after the other in the same processes: a test of each would take ten times
# as long, nearly all of it to start and end ranks. On two hosts with two each is at its own test.
@pytest.mark.timeout(ROW_LIMIT + 30)
@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_id)
def test_any_ranks(
    shared_network: Networks, ranks: Ranks, backend: str, layout: tuple[int, ...]
) -> None:
    table = ANY if backend == "gloo" else ANY | ANY_OURS
    network = shared_network(len(layout))
    ranks(network, layout, check_in_a_row, table, backend=backend, limit=ROW_LIMIT)


@pytest.mark.parametrize("layout", UNEVEN, ids=layout_id)
@pytest.mark.parametrize(
    "body",
    [
        *named(bodies(test_all_to_all, "single")),
        *named(bodies(test_all_gather, "into_tensor")),
        *named(bodies(test_reductions, "reduce_scatter")),
        *named({"groups_across_hosts": check_groups_across_hosts}),
        *named(bodies(test_all_to_all, "list"), pytest.mark.freescale_only),
    ],
)
def test_hosts_with_different_numbers_of_ranks(
    shared_network: Networks, ranks: Ranks, backend: str, layout: tuple[int, ...], body: Body
) -> None:
    run(shared_network, ranks, layout, body, backend=backend)


@pytest.mark.parametrize("body", named(PAIR))
def test_one_rank_on_each_host(
    shared_network: Networks, ranks: Ranks, backend: str, body: Body
) -> None:
    run(shared_network, ranks, (1, 1), body, backend=backend)


@pytest.mark.parametrize(
    "body",
    [*named(ANY | FOUR), *named(ANY_OURS | FOUR_OURS, pytest.mark.freescale_only)],
)
def test_two_ranks_on_each_host(
    shared_network: Networks, ranks: Ranks, backend: str, body: Body
) -> None:
    run(shared_network, ranks, (2, 2), body, backend=backend)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_that_only_move(
    shared_network: Networks, ranks: Ranks, backend: str, name: str
) -> None:
    if backend == "gloo" and name == "all_to_all_list":
        pytest.skip("not for gloo")
    dtypes = USUAL if backend == "gloo" else BYTE_DTYPES
    ranks(shared_network(2), (2, 2), DTYPES[name], dtypes, backend=backend)


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("mtu", [1500, 9000])
def test_families_and_packet_sizes(
    make_network: Callable[..., Network], ranks: Ranks, backend: str, family: int, mtu: int
) -> None:
    """Only this family of addresses is there."""
    plans = [HostPlan(families=str(family))] * 2
    with make_network(plans, mtu=mtu) as network:
        ranks(network, 1, check_large_messages, backend=backend, family=family)
