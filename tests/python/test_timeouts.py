"""Deadlines of init, of each operation and of wait(); what is late is named."""

import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.rank import open_store
from harness.scene import join

pytestmark = pytest.mark.freescale_only

SHORT = 1.0  # seconds
# Of groups that have it from the first: all ranks must come within it to make them.
MADE_WITH = 5.0
# A machine with other work to do may be late, but not by the launch's limit.
LATEST = 30.0


def limit_to_short(group: dist.ProcessGroup | None) -> None:
    """Not as the group is made: that would have to be over within the limit, too."""
    assert group is not None
    group.set_timeout(timedelta(seconds=SHORT))


def expect_timeout(call: Callable[[], object], words: list[str], limit: float = SHORT) -> None:
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        assert " Timed out " in str(error), error
        for word in words:
            assert re.search(word, str(error)), f"no {word!r} in: {error}"
    else:
        raise AssertionError("no error")
    assert limit * 0.9 <= time.monotonic() - begin < LATEST


def check_collective(rank: int, size: int) -> None:
    """The limit is the one that the group was made with."""
    over = open_store("over")
    join("limited", rank, size, MADE_WITH)
    if rank == 1:
        over.get("over")
        return
    words = ["rank 0", "all_reduce", "5000 ms", "rank 1"]
    expect_timeout(lambda: dist.all_reduce(torch.ones(1)), words, MADE_WITH)
    over.set("over", "")


def check_group_goes_on_elsewhere(rank: int, size: int) -> None:
    short = dist.new_group()
    limit_to_short(short)
    if rank == 0:
        expect_timeout(lambda: dist.all_reduce(torch.ones(9), group=short), ["rank 1"])
    dist.barrier()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert float(total) == size


def check_receive(rank: int, size: int) -> None:
    over = open_store("over")
    limit_to_short(dist.group.WORLD)
    if rank == 1:
        over.get("over")
        return
    words = ["rank 0", "recv", "rank 1"]
    expect_timeout(lambda: dist.recv(torch.empty(1), 1), words)
    over.set("over", "")


def check_wait(rank: int, size: int) -> None:
    """A deadline of wait() itself ends the wait, not the operation."""
    over, total = open_store("over"), torch.ones(1)
    if rank == 1:
        over.get("over")
        dist.all_reduce(total)
    else:
        work = dist.all_reduce(total, async_op=True)
        assert work is not None
        limit = timedelta(seconds=SHORT)
        expect_timeout(lambda: work.wait(limit), ["rank 0", "all_reduce", "1000 ms"])
        over.set("over", "")
        work.wait()
    assert float(total) == size


def check_set_timeout(rank: int, size: int) -> None:
    over = open_store("over")
    limit_to_short(dist.group.WORLD)
    if rank == 1:
        over.get("over")
        return
    expect_timeout(lambda: dist.all_reduce(torch.ones(1)), ["1000 ms"])
    over.set("over", "")


def check_one_operation(rank: int, size: int) -> None:
    """An operation's own limit is stronger than the group's, which is long."""
    over = open_store("over")
    if rank == 1:
        over.get("over")
        return
    options = dist.AllToAllOptions()
    options.timeout = timedelta(seconds=SHORT)
    given = torch.ones(size)
    work = dist.group.WORLD.alltoall_base(torch.empty(size), given, [], [], options)
    expect_timeout(work.wait, ["rank 0", "all_to_all_single", "1000 ms", "rank 1"])
    over.set("over", "")


def check_batch(rank: int, size: int) -> None:
    over, short = open_store("over"), dist.new_group()
    limit_to_short(short)
    if rank == 1:
        over.get("over")
        return
    with dist._coalescing_manager(group=short, async_ops=True) as manager:
        for _ in range(2):
            dist.all_reduce(torch.ones(3), group=short)
    expect_timeout(manager.wait, ["rank 0", "all_reduce", "1000 ms", "rank 1"])
    over.set("over", "")


def check_first_barrier(rank: int, size: int) -> None:
    over, short = open_store("over"), dist.new_group()
    limit_to_short(short)
    if rank == 1:
        over.get("over")
        return
    expect_timeout(lambda: dist.barrier(short), ["rank 0", "barrier", "1000 ms", "rank 1"])
    over.set("over", "")


def check_new_group(rank: int, size: int) -> None:
    """A group that one rank does not make, within the group's own limit."""
    over = open_store("over")
    if rank == 1:
        over.get("over")
        return
    limit = timedelta(seconds=SHORT)
    expect_timeout(lambda: dist.new_group(timeout=limit), ["rank 0", "rank 1|ranks? 1"])
    over.set("over", "")


def check_split(rank: int, size: int) -> None:
    over = open_store("over")
    limit = timedelta(seconds=MADE_WITH)
    part = dist.group.WORLD.split_group(list(range(size)), timeout=limit, group_name="part")
    assert part._get_backend(torch.device("cpu")).options._timeout == limit
    if rank == 1:
        over.get("over")
        return
    words = ["rank 0", "5000 ms", "rank 1"]
    expect_timeout(part.allreduce([torch.ones(1)]).wait, words, MADE_WITH)
    over.set("over", "")


def check_init(rank: int, size: int) -> None:
    """The group says who is missing."""
    # Whoever gave up before another one came would tell that at once.
    meeting = open_store("meeting")
    meeting.set(f"here {rank}", "")
    meeting.wait([f"here {peer}" for peer in range(size)])
    if rank == 2:
        return
    expect_timeout(
        lambda: join("incomplete", rank, size, SHORT),
        [f"rank {rank}", "2"],
    )


def test_collective(launch: Launcher) -> None:
    launch(check_collective, 2, init=False)


def test_timeout_of_one_group_leaves_others_alone(launch: Launcher) -> None:
    launch(check_group_goes_on_elsewhere, 2)


def test_receive(launch: Launcher) -> None:
    launch(check_receive, 2)


def test_wait(launch: Launcher) -> None:
    launch(check_wait, 2)


def test_timeout_set_later(launch: Launcher) -> None:
    launch(check_set_timeout, 2)


def test_rank_that_never_joins(launch: Launcher) -> None:
    launch(check_init, 3, init=False)


def test_limit_of_one_operation(launch: Launcher) -> None:
    launch(check_one_operation, 2)


def test_batch(launch: Launcher) -> None:
    launch(check_batch, 2)


def test_first_barrier(launch: Launcher) -> None:
    launch(check_first_barrier, 2)


def test_new_group(launch: Launcher) -> None:
    launch(check_new_group, 2)


def test_split(launch: Launcher) -> None:
    launch(check_split, 2)
