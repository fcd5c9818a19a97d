"""Strangers that talk nonsense to a rank, links whose memory is damaged, and calls that do not fit.

At three ranks; ``--fault-sizes 2,3,8`` for others.
"""

import contextlib
import ctypes
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.scene import (
    LARGE,
    MOMENTS,
    SMALL,
    TIMEOUT,
    WAKE_LIMIT,
    exchange,
    join,
    open_scene,
    restart,
)

pytestmark = pytest.mark.freescale_only

# --- Strangers ------------------------------------------------------------------------------------


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
    scene = open_scene(rank, size, moment)
    with strangers() if scene.at_fault else contextlib.nullcontext():
        for number in range(10):
            scene.round(number)
        # Connecting, too, goes on beside them.
        group = dist.new_group()
        dist.barrier(group)
        scene.meet("disturbed")


def check_strangers_in_init(rank: int, size: int) -> None:
    scene = open_scene(rank, size)
    with strangers() if scene.at_fault else contextlib.nullcontext():
        join("first", rank, size)
        scene.round(0)
        scene.meet("joined")


# --- Damaged links --------------------------------------------------------------------------------


def memory_of_links() -> list[tuple[int, int]]:
    """Address and bytes of each link's memory in this process."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "/memfd:freescale-link" in line:
            begin, end = (int(word, 16) for word in line.split()[0].split("-"))
            found.append((begin, end - begin))
    return found


DAMAGE: dict[str, Callable[[int], bytes]] = {
    "zeros": bytes,
    "ones": lambda count: b"\xff" * count,
    "noise": os.urandom,
}


def check_damage(rank: int, size: int, moment: str, damage: str) -> None:
    """The rank at fault writes over all that it shares with its peers: headers, cursors, chunks.

    What is written again before it is read heals. Otherwise the link is given up: nobody hangs,
    and nobody gets wrong bytes, which every round checks.
    """
    scene = open_scene(rank, size, moment)
    for number in range(4):
        scene.round(number)
    scene.meet("at rest")
    if scene.at_fault:
        links = memory_of_links()
        assert len(links) == size - 1
        for address, count in links:
            ctypes.memmove(address, DAMAGE[damage](count), count)
    scene.meet("damaged")
    begin = time.monotonic()
    try:
        for number in range(4):
            scene.round(number)
    except RuntimeError as error:
        assert re.search("is lost: .*(makes no sense|sent|read|returned)", str(error))
    assert time.monotonic() - begin < WAKE_LIMIT
    scene.meet("done")
    if size > 2 and not scene.at_fault:
        restart(scene, size - 1)


# --- Calls that do not fit together ---------------------------------------------------------------


def call_other_operation(count: int, group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.ones(count), group=group)


def call_other_size(count: int, group: dist.ProcessGroup) -> None:
    exchange(count + 1, group)


WRONG_CALLS = {"other operation": call_other_operation, "other size": call_other_size}


def check_wrong_call(rank: int, size: int, moment: str, wrong: str) -> None:
    """An error on every rank, and both groups go on."""
    scene = open_scene(rank, size, moment)
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


# --- The matrix -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
def test_strangers(launch: Launcher, fault_size: int, moment: str) -> None:
    launch(check_strangers, fault_size, moment, timeout=TIMEOUT)


def test_strangers_in_init(launch: Launcher, fault_size: int) -> None:
    launch(check_strangers_in_init, fault_size, init=False)


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("moment", MOMENTS)
def test_damaged_links(launch: Launcher, fault_size: int, moment: str, damage: str) -> None:
    launch(check_damage, fault_size, moment, damage, timeout=TIMEOUT)


@pytest.mark.parametrize("wrong", WRONG_CALLS)
@pytest.mark.parametrize("moment", ["small", "large", "in flight"])
def test_wrong_call(launch: Launcher, fault_size: int, moment: str, wrong: str) -> None:
    launch(check_wrong_call, fault_size, moment, wrong, timeout=TIMEOUT)
