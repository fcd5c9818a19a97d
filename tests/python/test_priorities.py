"""Priorities across groups: whoever calls in whatever order, everything completes."""

import itertools

import pytest
import torch
import torch.distributed as dist

import freescale_pg as fs
from harness.data import arbitrary, assert_same_bits, poisoned
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

LEVELS = list(fs.Priority)
# Floats per rank: inline, and several chunks.
SIZES = [16, 50_000]


def make_groups() -> dict[fs.Priority, dist.ProcessGroup]:
    return {level: dist.new_group(pg_options=fs.Options(priority=level)) for level in LEVELS}


def run_pair(
    first: dist.ProcessGroup, second: dist.ProcessGroup, counts: tuple[int, int], opposite: bool
) -> None:
    """Calls an exchange on each of two groups, on one rank in the opposite order."""
    size = dist.get_world_size()
    rank = dist.get_rank()
    pending = []
    calls = [(first, counts[0], "first"), (second, counts[1], "second")]
    for group, count, name in reversed(calls) if opposite else calls:
        output = poisoned(size * count)
        given = torch.cat([arbitrary(count, key=(name, rank, peer)) for peer in range(size)])
        work = dist.all_to_all_single(output, given, group=group, async_op=True)
        assert work is not None
        pending.append((work, output, count, name))
    for work, output, count, name in pending:
        work.wait()
        expected = torch.cat([arbitrary(count, key=(name, peer, rank)) for peer in range(size)])
        assert_same_bits(output, expected, (name, count))


def check_opposite_orders(rank: int, size: int) -> None:
    groups = make_groups()
    for first, second in itertools.permutations(LEVELS, 2):
        for counts in itertools.product(SIZES, SIZES):
            run_pair(groups[first], groups[second], counts, opposite=rank == 0)


def check_opposite_blocking_orders(rank: int, size: int) -> None:
    """A rank that blocks in a bulk exchange which its peer has not reached must not hold back an
    urgent one: the peer blocks in that one first. The bulk one is in flight on this rank only.
    """
    urgent = dist.new_group(pg_options=fs.Options(priority=fs.Priority.URGENT))
    bulk = dist.new_group(pg_options=fs.Options(priority=fs.Priority.BACKGROUND))
    for _ in range(5):
        output = poisoned(size * 400_000)
        given = torch.full((size * 400_000,), float(rank))
        small = torch.ones(4)
        if rank == 0:
            work = dist.all_to_all_single(output, given, group=bulk, async_op=True)
            assert work is not None
            dist.all_reduce(small, group=urgent)
            work.wait()
        else:
            dist.all_reduce(small, group=urgent)
            dist.all_to_all_single(output, given, group=bulk)
        assert_same_bits(small, torch.full((4,), float(size)), "urgent")
        expected = torch.arange(float(size)).repeat_interleave(400_000)
        assert_same_bits(output, expected, "bulk")


def check_same_op_at_different_priorities(rank: int, size: int) -> None:
    """Ranks need not agree on a priority: it is a wish, not part of what must match."""
    for count in SIZES:
        output = poisoned(size * count)
        level = LEVELS[(rank * 2) % len(LEVELS)]
        fs.all_to_all_single(output, torch.full((size * count,), float(rank)), priority=level)
        assert_same_bits(output, torch.arange(float(size)).repeat_interleave(count), count)


def check_background_is_not_starved(rank: int, size: int) -> None:
    """With aging, a bulk exchange ends although urgent ones keep coming until it has."""
    bulk = dist.new_group(pg_options=fs.Options(priority=fs.Priority.BACKGROUND))
    output = poisoned(size * 2_000_000)
    given = torch.full((size * 2_000_000,), float(rank))
    work = dist.all_to_all_single(output, given, group=bulk, async_op=True)
    assert work is not None
    done = torch.zeros(1)
    while not done.all():
        # Every rank goes on until it is done on all of them.
        fs.all_to_all_single(
            torch.empty(size * 20_000), torch.ones(size * 20_000), priority=fs.Priority.URGENT
        )
        done = torch.tensor([float(work.is_completed())])
        dist.all_reduce(done, dist.ReduceOp.MIN)
    work.wait()
    expected = torch.arange(float(size)).repeat_interleave(2_000_000)
    assert_same_bits(output, expected, "bulk")


def priorities_of_calls() -> dict[tuple[str, str], int]:
    return {(row.op, row.priority): row.calls for row in fs.stats().ops}


def check_precedence(rank: int, size: int) -> None:
    """Explicit argument before context manager before group before policy."""
    high = dist.new_group(pg_options=fs.Options(priority=fs.Priority.HIGH))
    given, output = torch.ones(size, dtype=torch.int64), torch.empty(size, dtype=torch.int64)

    def expect(priority: str) -> None:
        assert priorities_of_calls() == {("all_to_all_single", priority): 1}
        fs.reset_stats()

    fs.reset_stats()
    dist.all_to_all_single(output, given)
    expect("BACKGROUND")  # The policy, as the default group says nothing.
    dist.all_to_all_single(output, given, group=high)
    expect("HIGH")
    with fs.priority(fs.Priority.LOW):
        dist.all_to_all_single(output, given, group=high)
        expect("LOW")
        with fs.priority(fs.Priority.NORMAL):
            dist.all_to_all_single(output, given, group=high)
            expect("NORMAL")
        fs.all_to_all_single(output, given, group=high, priority=fs.Priority.URGENT)
        expect("URGENT")
        dist.all_to_all_single(output, given)
        expect("LOW")
    dist.all_to_all_single(output, given, group=high)
    expect("HIGH")
    dist.all_to_all_single(output.float(), given.float())
    expect("NORMAL")  # The policy speaks of int64 only.


def check_context_manager_after_error(rank: int, size: int) -> None:
    fs.reset_stats()
    with pytest.raises(KeyError), fs.priority(fs.Priority.URGENT):
        raise KeyError
    dist.all_reduce(torch.ones(1))
    assert priorities_of_calls() == {("all_reduce", "NORMAL"): 1}


def check_parts_of_group_options(rank: int, size: int) -> None:
    """A group split off another inherits its priority."""
    options = fs.Options(priority=fs.Priority.LOW)
    group = dist.new_group(pg_options=options)
    part = group.split_group(list(range(size)), group_name="part")
    fs.reset_stats()
    part.allreduce([torch.ones(1)]).wait()
    assert priorities_of_calls() == {("all_reduce", "LOW"): 1}
    assert options.priority == fs.Priority.LOW


@pytest.mark.parametrize("size", [2, 3])
def test_every_pair_in_opposite_orders(launch: Launcher, size: int) -> None:
    launch(check_opposite_orders, size)


@pytest.mark.parametrize("size", [2, 3])
def test_urgent_call_passes_a_bulk_one_that_the_peer_has_not_reached(
    launch: Launcher, size: int
) -> None:
    launch(check_opposite_blocking_orders, size)


def test_ranks_may_disagree_on_the_priority(launch: Launcher) -> None:
    launch(check_same_op_at_different_priorities, 3)


def test_bulk_exchange_is_not_starved(launch: Launcher) -> None:
    launch(check_background_is_not_starved, 2)


def test_precedence(launch: Launcher) -> None:
    environment = {"FREESCALE_POLICY": "all_to_all_single:int64=BACKGROUND"}
    launch(check_precedence, 2, environment=environment)


def test_context_manager_restores_after_an_error(launch: Launcher) -> None:
    launch(check_context_manager_after_error, 1)


def test_split_inherits_the_priority(launch: Launcher) -> None:
    launch(check_parts_of_group_options, 2)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("urgent", TypeError), (True, TypeError), (1.0, TypeError), (7, ValueError)],
)
def test_context_manager_checks_its_argument(wrong: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=repr(wrong)), fs.priority(wrong):  # type: ignore[arg-type]
        pass
