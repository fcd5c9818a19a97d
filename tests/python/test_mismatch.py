"""Ranks whose calls do not fit together: an error on each that names rank, op and both values."""

import contextlib
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist

from freescale_pg import functional
from harness.launch import Launcher

pytestmark = pytest.mark.freescale_only

# Floats: inline, and granted by the receiver.
SMALL, LARGE = 8, 100_000


def errors_of(calls: list[Callable[[], object]]) -> str:
    """The first error among the calls; there must be one.

    A rank that has sent a small message is done with it. It learns from its next collective on
    the group that the message fitted nowhere.
    """
    for call in calls:
        try:
            call()
        except (RuntimeError, ValueError) as error:
            return str(error)
    raise AssertionError("no error")


def error_of(call: Callable[[dist.ProcessGroup], object], group: dist.ProcessGroup) -> str | None:
    try:
        call(group)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return None


def check_mismatch(
    rank: int, size: int, mine: list[Callable[[int, dist.ProcessGroup], object]], words: list[str]
) -> None:
    """Rank 0 calls ``mine[0]``, rank 1 ``mine[1]``, the others as rank 0."""
    group = dist.new_group()
    call = mine[1] if rank == 1 else mine[0]
    # All call the barrier: a rank whose own call went well is told by it what failed elsewhere.
    errors = [
        error for one in (partial(call, rank), dist.barrier) if (error := error_of(one, group))
    ]
    assert errors, "no error"
    message = errors[0]
    for word in words:
        assert re.search(word, message), f"no {word!r} in: {message}"
    # Each rank names itself and one whose call differs from its own.
    assert f"rank {rank}" in message, message
    assert re.search("rank [^1]" if rank == 1 else "rank 1", message), message
    total = torch.ones(3)
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((3,), float(size)))


def exchange(count: int, dtype: torch.dtype, group: dist.ProcessGroup) -> None:
    rows = count * dist.get_world_size(group)
    dist.all_to_all_single(
        torch.empty(rows, dtype=dtype), torch.ones(rows, dtype=dtype), group=group
    )


def all_float(count: int, rank: int, group: dist.ProcessGroup) -> None:
    exchange(count, torch.float32, group)


def all_int(count: int, rank: int, group: dist.ProcessGroup) -> None:
    exchange(count, torch.int32, group)


def gather(count: int, rank: int, group: dist.ProcessGroup) -> None:
    size = dist.get_world_size(group)
    dist.all_gather_into_tensor(torch.empty(count * size), torch.ones(count), group=group)


def reduce_with(op: str, count: int, rank: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(count), getattr(dist.ReduceOp, op), group=group)


def broadcast_from(root: int, count: int, rank: int, group: dist.ProcessGroup) -> None:
    dist.broadcast(torch.ones(count), root, group=group)


def coalesced(tensors: int, count: int, rank: int, group: dist.ProcessGroup) -> None:
    group.allreduce_coalesced([torch.ones(count) for _ in range(tensors)]).wait()


@pytest.mark.parametrize("count", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("size", [2, 3])
class TestMismatch:
    def launch(
        self, launch: Launcher, size: int, calls: list[Callable[..., object]], words: list[str]
    ) -> None:
        launch(check_mismatch, size, calls, words, timeout=30)

    def test_op(self, launch: Launcher, size: int, count: int) -> None:
        calls = [partial(all_float, count), partial(gather, count)]
        self.launch(launch, size, calls, ["all_to_all_single", "all_gather_into_tensor"])

    def test_dtype(self, launch: Launcher, size: int, count: int) -> None:
        calls = [partial(all_float, count), partial(all_int, count)]
        self.launch(launch, size, calls, ["all_to_all_single", "float32", "int32"])

    def test_size(self, launch: Launcher, size: int, count: int) -> None:
        calls = [partial(all_float, count), partial(all_float, count + 1)]
        words = ["all_to_all_single", str(4 * count), str(4 * count + 4)]
        self.launch(launch, size, calls, words)

    def test_reduction(self, launch: Launcher, size: int, count: int) -> None:
        calls = [partial(reduce_with, "SUM", count), partial(reduce_with, "MAX", count)]
        self.launch(launch, size, calls, ["all_reduce"])

    def test_root(self, launch: Launcher, size: int, count: int) -> None:
        calls = [partial(broadcast_from, 0, count), partial(broadcast_from, 1, count)]
        self.launch(launch, size, calls, ["broadcast"])

    def test_number_of_tensors(self, launch: Launcher, size: int, count: int) -> None:
        calls = [partial(coalesced, 2, count), partial(coalesced, 3, count)]
        self.launch(launch, size, calls, ["all_reduce_coalesced"])


def reduce_scatter(count: int, rank: int, group: dist.ProcessGroup) -> None:
    size = dist.get_world_size(group)
    dist.reduce_scatter_tensor(torch.empty(count), torch.ones(count * size), group=group)


def broadcast(count: int, rank: int, group: dist.ProcessGroup) -> None:
    dist.broadcast(torch.ones(count), 1, group=group)


def exchange_with_gradient(count: int, rank: int, group: dist.ProcessGroup) -> None:
    """Experts of another capacity on one rank."""
    rows = torch.ones(dist.get_world_size(group), count, 3, requires_grad=True)
    functional.all_to_all_single(rows * 2, group=group)


@pytest.mark.parametrize(("debug", "extra"), [("OFF", -1), ("OFF", 1), ("DETAIL", 1)])
@pytest.mark.parametrize(
    "call",
    [gather, partial(reduce_with, "SUM"), reduce_scatter, broadcast, exchange_with_gradient],
    ids=["gather", "all_reduce", "reduce_scatter", "broadcast", "exchange_with_gradient"],
)
def test_size_that_differs_by_one(
    launch: Launcher, call: Callable[..., object], debug: str, extra: int
) -> None:
    for count in (SMALL, LARGE):
        calls = [partial(call, count), partial(call, count + extra)]
        environment = {"TORCH_DISTRIBUTED_DEBUG": debug}
        if debug == "OFF":
            launch(check_mismatch, 3, calls, [], timeout=30)
        else:
            launch(check_some_error, 3, calls, environment=environment, checks_footprint=False)


def check_some_error(rank: int, size: int, calls: list[Callable[..., object]]) -> None:
    """torch's own checks may speak first; ranks must not hang, and other groups must go on."""
    group = dist.new_group()
    errors_of([lambda: calls[rank == 1](rank, group), lambda: dist.barrier(group)])
    dist.all_reduce(torch.ones(3))


def check_splits(rank: int, size: int, sent: int, expected: int) -> None:
    """Rank 0 sends a number of rows that rank 1 does not expect."""
    group = dist.new_group()
    leaving, arriving = ([0, sent], [0, 0]) if rank == 0 else ([0, 0], [expected, 0])
    output, given = torch.empty(sum(arriving), 2), torch.ones(sum(leaving), 2)
    message = errors_of(
        [
            lambda: dist.all_to_all_single(output, given, arriving, leaving, group=group),
            lambda: dist.barrier(group),
        ]
    )
    for word in (f"rank {1 - rank}", str(8 * sent), str(8 * expected)):
        assert word in message, f"no {word!r} in: {message}"
    dist.barrier()


@pytest.mark.parametrize(("sent", "expected"), [(1, 3), (3, 1), (0, 3), (90_000, 90_001)])
def test_splits_that_disagree(launch: Launcher, sent: int, expected: int) -> None:
    launch(check_splits, 2, sent, expected, timeout=30)


def check_empty_payload(rank: int, size: int) -> None:
    """A rank without rows has the wrong dtype all the same."""
    group = dist.new_group()
    dtype = torch.int32 if rank == 1 else torch.int64
    rows = 0 if rank == 1 else 2
    arriving = [0 if peer == 1 else 2 for peer in range(size)]
    output = torch.empty(sum(arriving), dtype=dtype)
    given = torch.ones(rows * size, dtype=dtype)
    message = errors_of(
        [
            lambda: dist.all_to_all_single(output, given, arriving, [rows] * size, group=group),
            lambda: dist.barrier(group),
        ]
    )
    for word in ("int32", "int64"):
        assert word in message, f"no {word!r} in: {message}"
    dist.barrier()


def test_dtype_of_a_rank_without_rows(launch: Launcher) -> None:
    launch(check_empty_payload, 3, timeout=30)


def check_skipped_collective(rank: int, size: int) -> None:
    """Rank 1 leaves out the exchange of counts: its exchange of rows meets that of the others."""
    group = dist.new_group()
    calls = [
        lambda: dist.all_to_all_single(
            torch.empty(size, dtype=torch.int64), torch.ones(size, dtype=torch.int64), group=group
        ),
        lambda: dist.all_to_all_single(torch.empty(size, 4), torch.ones(size, 4), group=group),
        lambda: dist.barrier(group),
    ]
    message = errors_of(calls[1:] if rank == 1 else calls)
    assert "#1" in message, message
    dist.barrier()


def test_skipped_collective(launch: Launcher) -> None:
    launch(check_skipped_collective, 2, timeout=30)


def check_message_too_long(rank: int, size: int, count: int) -> None:
    group = dist.new_group()
    if rank == 0:
        calls = [
            lambda: dist.send(torch.ones(count), 1, group=group),
            lambda: dist.barrier(group),
        ]
    else:
        calls = [lambda: dist.recv(torch.empty(count - 1), 0, group=group)]
    if rank == 1 or count == LARGE:
        message = errors_of(calls)
        for word in ("rank 0", "rank 1", str(4 * count), str(4 * count - 4)):
            assert word in message, f"no {word!r} in: {message}"
    else:
        dist.send(torch.ones(count), 1, group=group)
    dist.barrier()


@pytest.mark.parametrize("count", [SMALL, LARGE], ids=["small", "large"])
def test_message_longer_than_its_receive(launch: Launcher, count: int) -> None:
    launch(check_message_too_long, 2, count, timeout=30)


def rooted_calls(rank: int, root: int, count: int) -> dict[str, Callable[[], object]]:
    """Every collective that has a root, as a rank calls it that takes ``root`` for it."""
    tensor, size = torch.ones(count), dist.get_world_size()
    parts = [torch.ones(count) for _ in range(size)] if rank == root else None
    return {
        "broadcast": partial(dist.broadcast, tensor, root),
        "scatter": partial(dist.scatter, tensor, parts, root),
        "gather": partial(dist.gather, tensor, parts, root),
        "reduce": partial(dist.reduce, tensor, root),
    }


def check_roots(rank: int, size: int, count: int) -> None:
    """Each rank takes itself for the root, or the next one: an error on all, and at once."""
    for root in (rank, (rank + 1) % size):
        for op, call in rooted_calls(rank, root, count).items():
            with pytest.raises(RuntimeError) as caught:
                call()
            message = str(caught.value)
            assert op in message and f"rank {rank}" in message, message
            assert len(set(re.findall(r"gave root (\d)", message))) == 2, message
            check_group_is_well(size)


def check_group_is_well(size: int) -> None:
    """Nothing is left of an earlier failure: no later call fails on any rank."""
    for count in (1, LARGE):
        total = torch.ones(count)
        dist.all_reduce(total)
        assert torch.equal(total, torch.full((count,), float(size)))
    dist.barrier()


# Long enough that an error within it was no timeout.
@pytest.mark.parametrize("count", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_differ_about_the_root(launch: Launcher, size: int, count: int) -> None:
    launch(check_roots, size, count, timeout=60)


def check_one_mistake(rank: int, size: int, count: int) -> None:
    """A receiver expects another size: one error on it and on the root, and no other call fails."""
    wrong = count + 1 if rank == 1 else count
    for op, call in rooted_calls(rank, 0, wrong).items():
        concerned = rank < 2 or op == "reduce"
        with pytest.raises(RuntimeError) if concerned else contextlib.nullcontext():
            call()
        dist.distributed_c10d._get_default_store().set(f"{op}/{rank}", "")
        dist.distributed_c10d._get_default_store().wait([f"{op}/{r}" for r in range(size)])
        check_group_is_well(size)


@pytest.mark.parametrize("count", [SMALL, LARGE], ids=["small", "large"])
def test_one_mistake_is_one_error(launch: Launcher, count: int) -> None:
    launch(check_one_mistake, 2, count, timeout=60)


def check_nothing_lands(rank: int, size: int) -> None:
    """Not a byte of a message that does not fit reaches the output."""
    for count in (SMALL, LARGE):
        output = torch.full((count,), 7.0)
        group = dist.new_group()
        tensor = torch.zeros(count + 1) if rank == 0 else output
        errors_of([partial(dist.broadcast, tensor, 0, group=group), partial(dist.barrier, group)])
        if rank == 1:
            assert torch.equal(output, torch.full((count,), 7.0))
    dist.barrier()


def test_nothing_of_a_mismatch_lands(launch: Launcher) -> None:
    launch(check_nothing_lands, 2, timeout=30)
