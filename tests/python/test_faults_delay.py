"""A rank that stands still for a while, or is late: everybody waits for it, and nobody fails.

At three ranks; ``--fault-sizes 2,3,8`` for others.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.scene import LARGE, MOMENTS, TIMEOUT, Scene, join, open_scene, restart

pytestmark = pytest.mark.freescale_only


@contextlib.contextmanager
def stopped_for_a_while(scene: Scene) -> Iterator[None]:
    """Rank 0 stops the process of the rank at fault as the block begins."""
    if scene.at_fault:
        scene.store.set("process", str(os.getpid()))
    process = int(scene.store.get("process"))
    scene.meet("process is known")

    def stop_it() -> None:
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.3)
        os.kill(process, signal.SIGCONT)

    stopper = threading.Thread(target=stop_it)
    if scene.rank == 0:
        stopper.start()
    try:
        yield
    finally:
        if scene.rank == 0:
            stopper.join()


def check_stop(rank: int, size: int, moment: str) -> None:
    scene = open_scene(rank, size, moment)
    with stopped_for_a_while(scene):
        for number in range(30):
            scene.round(number)
    for number in range(4):
        scene.round(number)


def check_stop_in_init(rank: int, size: int) -> None:
    scene = open_scene(rank, size)
    with stopped_for_a_while(scene):
        join("first", rank, size)
    scene.round(0)


def check_stop_in_destroy(rank: int, size: int) -> None:
    """What is in flight ends; nobody waits for the rank that stands still."""
    scene = open_scene(rank, size)
    scene.round(0)
    work = dist.all_reduce(torch.ones(LARGE), async_op=True)
    assert work is not None
    with stopped_for_a_while(scene):
        dist.destroy_process_group()
        # Done before, or ended by this or another rank's leaving.
        with contextlib.suppress(RuntimeError):
            work.wait()
    restart(scene, size)


def check_slowness(rank: int, size: int, moment: str) -> None:
    """The last rank is late for every call."""
    scene = open_scene(rank, size, moment)
    for number in range(10):
        if scene.at_fault:
            time.sleep(0.01 * (number % 4))
        scene.round(number)


def check_slowness_in_init(rank: int, size: int) -> None:
    scene = open_scene(rank, size)
    if scene.at_fault:
        time.sleep(0.5)
    join("first", rank, size)
    scene.round(0)


@pytest.mark.parametrize("moment", MOMENTS)
def test_stopped_rank(launch: Launcher, fault_size: int, moment: str) -> None:
    launch(check_stop, fault_size, moment, timeout=TIMEOUT)


def test_rank_stopped_in_init(launch: Launcher, fault_size: int) -> None:
    launch(check_stop_in_init, fault_size, init=False)


def test_rank_stopped_in_destroy(launch: Launcher, fault_size: int) -> None:
    launch(check_stop_in_destroy, fault_size, timeout=TIMEOUT)


@pytest.mark.parametrize("moment", MOMENTS)
def test_slow_rank(launch: Launcher, fault_size: int, moment: str) -> None:
    launch(check_slowness, fault_size, moment, timeout=TIMEOUT)


def test_rank_slow_to_join(launch: Launcher, fault_size: int) -> None:
    launch(check_slowness_in_init, fault_size, init=False)
