"""Faults at every moment: what the others see, and that a new group works at once afterwards.

Every combination runs at three ranks; ``--fault-sizes 2,3,8`` runs it at those. The last rank is
the one at fault. What processes still hold at their end is checked by the launcher.
"""

import atexit
import contextlib
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.rank import open_store

pytestmark = pytest.mark.freescale_only

# Floats for each peer: inline, and granted by the receiver.
SMALL, LARGE = 8, 100_000
# Seconds. The groups' timeout is far above the other two, so an error within WAKE_LIMIT came from
# the fault itself; a short one is for ranks that wait for nobody.
TIMEOUT, WAKE_LIMIT, SHORT = 60.0, 20.0, 2.0


@dataclass(frozen=True)
class Scene:
    """One rank of a test, and what it is about.

    Attributes:
        rank, size: Of the default group.
        store: For words between the ranks that do not go through the backend.
        round: One round of traffic on the default group.
    """

    rank: int
    size: int
    store: dist.Store
    round: Callable[[int], None]

    @property
    def at_fault(self) -> bool:
        return self.rank == self.size - 1

    def meet(self, name: str) -> None:
        """Waits for all ranks, by the store."""
        self.store.set(f"{name}/{self.rank}", "here")
        self.await_words(name, range(self.size))

    def await_words(self, name: str, ranks: range) -> None:
        self.store.wait([f"{name}/{rank}" for rank in ranks], timedelta(seconds=WAKE_LIMIT))


# --- Traffic --------------------------------------------------------------------------------------


def exchange(count: int, group: dist.ProcessGroup | None = None) -> None:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    given = torch.arange(size, dtype=torch.float32).repeat_interleave(count) + 100 * rank
    got = torch.full_like(given, -1.0)
    dist.all_to_all_single(got, given, group=group)
    expected = 100 * torch.arange(size, dtype=torch.float32).repeat_interleave(count) + rank
    assert torch.equal(got, expected)


def small(_: int) -> None:
    exchange(SMALL)


def large(_: int) -> None:
    exchange(LARGE)


def in_flight(_: int) -> None:
    """Several at once, waited for in another order."""
    totals = [torch.ones(count) for count in (SMALL, LARGE, 1, LARGE)]
    works = [dist.all_reduce(total, async_op=True) for total in totals]
    for work in reversed(works):
        assert work is not None
        work.wait()
    assert all(bool((total == dist.get_world_size()).all()) for total in totals)


def in_wait(number: int) -> None:
    """All but the rank at fault wait for it, every other time."""
    if number % 2 and dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(0.05)
    exchange(SMALL)


MOMENTS = {"small": small, "large": large, "in flight": in_flight, "in wait": in_wait}


# --- Faults that take a rank away -----------------------------------------------------------------


def expect_loss(scene: Scene, reason: str) -> None:
    """Traffic until it fails, in time and because of the lost rank."""
    number = 0
    with pytest.raises(RuntimeError) as caught:
        while True:
            scene.round(number)
            number += 1
    lost_at = float(scene.store.get("lost at"))
    assert time.monotonic() - lost_at < WAKE_LIMIT
    assert re.search(reason, str(caught.value)), caught.value
    assert f"rank {scene.size - 1}" in str(caught.value), caught.value


def restart(scene: Scene, size: int) -> None:
    """A new default group of the first ``size`` ranks works at once."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = open_store("again")
    dist.init_process_group(
        *("freescale",),
        store=store,
        rank=scene.rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT),
    )
    exchange(SMALL)
    exchange(LARGE)


def die(scene: Scene) -> None:
    scene.store.set("lost at", str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def exit_of_itself(scene: Scene) -> None:
    """As a process that an exception ends: the interpreter's own clean-up runs."""
    scene.store.set("lost at", str(time.monotonic()))
    atexit._run_exitfuncs()
    os._exit(9)


def check_loss(rank: int, size: int, moment: str, how: str) -> None:
    scene = Scene(rank, size, open_store("scene"), MOMENTS[moment])
    for number in range(4):
        scene.round(number)
    end, reason = {
        "killed": (die, "is lost: process [0-9]+ has died"),
        "raised": (exit_of_itself, "left the group: .* exits without destroy_process_group"),
    }[how]
    if scene.at_fault and how == "killed":
        # In the middle of whatever goes on then.
        threading.Timer(0.05, end, (scene,)).start()
        for number in range(1_000_000):
            scene.round(number)
    elif scene.at_fault:
        end(scene)
    expect_loss(scene, reason)
    if size > 2:
        restart(scene, size - 1)


def check_loss_in_init(rank: int, size: int) -> None:
    """The last rank has told the others where it is, and then goes before they come."""
    scene = Scene(rank, size, open_store("scene"), small)
    join = {"store": open_store("first"), "rank": rank, "world_size": size}
    if scene.at_fault:
        threading.Timer(0.3, die, (scene,)).start()
    else:
        scene.store.wait(["lost at"], timedelta(seconds=WAKE_LIMIT))
    limit = timedelta(seconds=TIMEOUT if scene.at_fault else SHORT)
    with pytest.raises(RuntimeError, match=f"{size - 1}"):
        dist.init_process_group("freescale", timeout=limit, **join)
    if size > 2:
        restart(scene, size - 1)


def check_loss_in_destroy(rank: int, size: int) -> None:
    """Destroying is local: it neither fails nor waits."""
    scene = Scene(rank, size, open_store("scene"), small)
    scene.round(0)
    work = dist.all_reduce(torch.ones(LARGE), async_op=True) if rank == 0 else None
    scene.meet("about to destroy")
    if scene.at_fault:
        die(scene)
    dist.destroy_process_group()
    if work is not None:
        with pytest.raises(RuntimeError, match=r"destroyed|lost|left|shut down"):
            work.wait()
    if size > 2:
        restart(scene, size - 1)


def check_absence(rank: int, size: int) -> None:
    """The last rank never joins."""
    scene = Scene(rank, size, open_store("scene"), small)
    if scene.at_fault:
        return
    with pytest.raises(RuntimeError, match=f"Timed out.*rank.*{size - 1}"):
        dist.init_process_group(
            *("freescale",),
            store=open_store("incomplete"),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=SHORT),
        )
    if size > 2:
        restart(scene, size - 1)


# --- Faults that pass -----------------------------------------------------------------------------


def check_stop(rank: int, size: int, moment: str) -> None:
    """The last rank is stopped for a while: everybody waits, nobody fails."""
    scene = Scene(rank, size, open_store("scene"), MOMENTS[moment])
    if scene.at_fault:
        scene.store.set("process", str(os.getpid()))
    process = int(scene.store.get("process"))
    scene.meet("known")

    def stop_it_for_a_while() -> None:
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(process, signal.SIGCONT)

    stopper = threading.Thread(target=stop_it_for_a_while)
    if rank == 0:
        stopper.start()
    for number in range(30):
        scene.round(number)
    if rank == 0:
        stopper.join()
    for number in range(4):
        scene.round(number)


def check_slowness(rank: int, size: int, moment: str) -> None:
    """The last rank is late for every call."""
    scene = Scene(rank, size, open_store("scene"), MOMENTS[moment])
    for number in range(10):
        if scene.at_fault:
            time.sleep(0.01 * (number % 4))
        scene.round(number)


def our_sockets() -> list[str]:
    """The abstract names of all sockets of the backend on this host, without the zero byte."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sorted(set(re.findall(r"@(freescale-\w+)", "\n".join(lines))))


def knock(garbage: bytes) -> None:
    for name in our_sockets():
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s,
        ):
            s.settimeout(0.2)
            s.connect("\0" + name)
            s.send(garbage)


@contextlib.contextmanager
def strangers() -> Iterator[None]:
    """Somebody who connects to every rank and talks nonsense, all the time."""
    over = threading.Event()

    def disturb() -> None:
        number = 0
        while not over.is_set():
            knock(os.urandom(1 + number * 37 % 900))
            number += 1

    stranger = threading.Thread(target=disturb)
    stranger.start()
    try:
        yield
    finally:
        over.set()
        stranger.join()


def check_strangers(rank: int, size: int, moment: str) -> None:
    scene = Scene(rank, size, open_store("scene"), MOMENTS[moment])
    with strangers() if scene.at_fault else contextlib.nullcontext():
        for number in range(10):
            scene.round(number)
        # Connecting, too, goes on beside them.
        group = dist.new_group()
        dist.barrier(group)
        scene.meet("disturbed")


# --- Calls that do not fit together ---------------------------------------------------------------


def call_other_operation(count: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(count), group=group)


def call_other_size(count: int, group: dist.ProcessGroup) -> None:
    exchange(count + 1, group)


WRONG_CALLS = {"other operation": call_other_operation, "other size": call_other_size}


def check_wrong_call(rank: int, size: int, moment: str, wrong: str) -> None:
    """An error on every rank, and both groups go on."""
    scene = Scene(rank, size, open_store("scene"), MOMENTS[moment])
    group = dist.new_group()
    count = LARGE if moment in ("large", "in flight") else SMALL
    bystander = dist.all_reduce(torch.ones(LARGE), async_op=True) if moment == "in flight" else None

    def call() -> None:
        (WRONG_CALLS[wrong] if scene.at_fault else exchange)(count, group)

    errors = []
    # What is sent with its header is over for its sender, who learns from its next call.
    for attempt in (call, lambda: dist.barrier(group)):
        try:
            attempt()
        except RuntimeError as error:
            errors.append(str(error))
    assert errors and f"rank {rank}" in errors[0], errors
    if bystander is not None:
        bystander.wait()
    scene.round(0)
    scene.meet("all have failed")
    exchange(count, group)


# --- Too little of something ----------------------------------------------------------------------


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


def check_scarcity(rank: int, size: int, what: str) -> None:
    """The last rank has too few descriptors, or too little memory, for its links."""
    scene = Scene(rank, size, open_store("scene"), small)
    join = {"store": open_store("first"), "rank": rank, "world_size": size}
    scarce: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if scene.at_fault and what == "descriptors":
        scarce = few(resource.RLIMIT_NOFILE, next_descriptor() + 5)
    elif scene.at_fault:
        # A new thread's stack does not fit.
        scarce = few(resource.RLIMIT_AS, address_space() + (2 << 20))
    with scarce, pytest.raises((RuntimeError, ValueError)) as caught:
        dist.init_process_group("freescale", timeout=timedelta(seconds=SHORT), **join)
    assert f"rank {rank}" in str(caught.value) or scene.at_fault, caught.value
    if scene.at_fault:
        words = "open files" if what == "descriptors" else "memory|[Rr]esource"
        assert re.search(words, str(caught.value)), caught.value
    scene.meet("all have failed")
    restart(scene, size)


# --- The matrix -----------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "size" in metafunc.fixturenames:
        sizes = [int(word) for word in metafunc.config.getoption("--fault-sizes").split(",")]
        metafunc.parametrize("size", sizes)


@pytest.mark.parametrize("how", ["killed", "raised"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_lost_rank(launch: Launcher, size: int, moment: str, how: str) -> None:
    launch(check_loss, size, moment, how, dies={size - 1}, timeout=TIMEOUT)


def test_rank_lost_in_init(launch: Launcher, size: int) -> None:
    launch(check_loss_in_init, size, init=False, dies={size - 1})


def test_rank_lost_in_destroy(launch: Launcher, size: int) -> None:
    launch(check_loss_in_destroy, size, dies={size - 1}, timeout=TIMEOUT)


def test_rank_that_never_joins(launch: Launcher, size: int) -> None:
    launch(check_absence, size, init=False)


@pytest.mark.parametrize("moment", MOMENTS)
def test_stopped_rank(launch: Launcher, size: int, moment: str) -> None:
    launch(check_stop, size, moment, timeout=TIMEOUT)


@pytest.mark.parametrize("moment", MOMENTS)
def test_slow_rank(launch: Launcher, size: int, moment: str) -> None:
    launch(check_slowness, size, moment, timeout=TIMEOUT)


@pytest.mark.parametrize("moment", MOMENTS)
def test_strangers(launch: Launcher, size: int, moment: str) -> None:
    launch(check_strangers, size, moment, timeout=TIMEOUT)


@pytest.mark.parametrize("wrong", WRONG_CALLS)
@pytest.mark.parametrize("moment", ["small", "large", "in flight"])
def test_wrong_call(launch: Launcher, size: int, moment: str, wrong: str) -> None:
    launch(check_wrong_call, size, moment, wrong, timeout=TIMEOUT)


@pytest.mark.parametrize("what", ["descriptors", "memory"])
def test_scarcity(launch: Launcher, size: int, what: str) -> None:
    launch(check_scarcity, size, what, init=False)
