"""A rank with too little of something: memory, shared memory, descriptors, permissions.

At three ranks; ``--fault-sizes 2,3,8`` for others.
"""

import contextlib
import importlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch.distributed as dist

from harness.launch import Launcher
from harness.scene import MOMENTS, TIMEOUT, WAKE_LIMIT, join, open_scene, restart
from harness.seccomp import forbid_direct_reads

pytestmark = pytest.mark.freescale_only


@contextlib.contextmanager
def few(kind: int, allowed: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def next_descriptor() -> int:
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@dataclass(frozen=True)
class Scarcity:
    """A limit, and the words of the error on the rank that has it."""

    limit: Callable[[], AbstractContextManager[None]]
    words: str


SCARCITIES = {
    "descriptors": Scarcity(
        lambda: few(resource.RLIMIT_NOFILE, next_descriptor() + 5), "open files"
    ),
    # A new thread's stack does not fit.
    "memory": Scarcity(
        lambda: few(resource.RLIMIT_AS, address_space() + (2 << 20)), "memory|[Rr]esource"
    ),
    # Python ignores the signal that comes with it, as it does by default.
    "shared memory": Scarcity(lambda: few(resource.RLIMIT_FSIZE, 1 << 20), "shared memory.*large"),
}


def check_scarcity(rank: int, size: int, what: str) -> None:
    """In init: every rank hears at once what is missing, and a restart with enough of it works."""
    importlib.import_module("freescale_pg._extension")  # it alone takes more than is left then
    scene = open_scene(rank, size)
    scarcity = SCARCITIES[what]
    # Which of two ranks makes their link's memory is drawn by lot.
    has_too_little = scene.at_fault or what == "shared memory"
    limit = scarcity.limit() if has_too_little else contextlib.nullcontext()
    begin = time.monotonic()
    with limit, pytest.raises((RuntimeError, ValueError), match=scarcity.words):
        join("first", rank, size)
    assert time.monotonic() - begin < WAKE_LIMIT
    scene.meet("all have failed")
    restart(scene, size)


def check_scarcity_later(rank: int, size: int, what: str, moment: str) -> None:
    """Groups that exist need no more of it: they go on while a further group cannot be made."""
    scene = open_scene(rank, size, moment)
    scene.round(0)
    with SCARCITIES[what].limit() if scene.at_fault else contextlib.nullcontext():
        for number in range(6):
            scene.round(number)
        scene.meet("done with too little")
    dist.barrier(dist.new_group())


def check_forbidden_reads(rank: int, size: int, moment: str) -> None:
    """Nobody may read another process's memory: bytes go another way."""
    forbid_direct_reads()
    scene = open_scene(rank, size, moment)
    join("first", rank, size)
    for number in range(10):
        scene.round(number)


@pytest.mark.parametrize("what", SCARCITIES)
def test_scarcity_in_init(launch: Launcher, fault_size: int, what: str) -> None:
    launch(check_scarcity, fault_size, what, init=False)


# Without memory torch itself cannot allocate: its error is its user's.
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("what", ["descriptors", "shared memory"])
def test_scarcity_later(launch: Launcher, fault_size: int, what: str, moment: str) -> None:
    launch(check_scarcity_later, fault_size, what, moment, timeout=TIMEOUT)


@pytest.mark.parametrize("moment", MOMENTS)
def test_direct_reads_forbidden(launch: Launcher, fault_size: int, moment: str) -> None:
    launch(check_forbidden_reads, fault_size, moment, init=False)
