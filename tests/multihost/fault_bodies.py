"""What bodies of tests of faults between hosts have in common: data, and errors that must come."""

import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from harness.data import arbitrary, assert_same_bits, poisoned
from harness.rank import open_store

# Seconds of the groups' timeout: far above the limit of an error, which then has come by itself.
TIMEOUT = 80.0
# Seconds within which an error must be there: many times what it takes.
WAKE_LIMIT = 25.0
# Floats to each rank: a moment's work, and more than sockets and windows of UCX take in.
SMALL, LARGE = 500, 4_000_000


def init(name: str, rank: int, size: int, timeout: float = TIMEOUT) -> None:
    """Makes the default group over files, which all hosts see whatever their network does."""
    dist.init_process_group(
        "freescale",
        store=open_store(name),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )


class Exchange:
    """An asynchronous all_to_all_single, and what it must yield."""

    def __init__(self, count: int, salt: object, group: dist.ProcessGroup | None = None) -> None:
        members = dist.get_process_group_ranks(group)
        me = dist.get_rank()
        given = torch.cat([arbitrary(count, key=(salt, me, peer)) for peer in members])
        self.expected = torch.cat([arbitrary(count, key=(salt, peer, me)) for peer in members])
        self.output = poisoned(count * len(members))
        work = dist.all_to_all_single(self.output, given, group=group, async_op=True)
        assert work is not None
        self.work = work

    def finish(self) -> None:
        self.work.wait()
        assert_same_bits(self.output, self.expected, "exchanged")


def exchange(count: int, salt: object, group: dist.ProcessGroup | None = None) -> None:
    Exchange(count, salt, group).finish()


def exchange_for_ever() -> None:
    """Until an error ends it."""
    for turn in range(1_000_000):
        exchange(LARGE // 8, turn)


def error_of(call: Callable[[], object]) -> str:
    """The error that the call ends with, and must end with soon."""
    begin = time.monotonic()
    try:
        call()
    except (RuntimeError, ValueError) as error:
        assert time.monotonic() - begin < WAKE_LIMIT, f"late: {error}"
        return str(error)
    raise AssertionError("no error")


def expect_error(call: Callable[[], object], *words: str) -> None:
    message = error_of(call)
    for word in words:
        assert word in message, f"no {word!r} in: {message}"


def expect_loss(call: Callable[[], object], peer: int, host: str) -> None:
    """The call fails as that rank of another host is lost; so do later ones, and at once."""
    expect_error(call, f"rank {peer}", f"on host {host}")
    begin = time.monotonic()
    expect_error(lambda: dist.all_reduce(torch.ones(1)), f"rank {peer}")
    # Three heartbeats, by which it might learn of it anew, take 15 s.
    assert time.monotonic() - begin < 10.0
