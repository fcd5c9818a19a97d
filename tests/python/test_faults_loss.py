"""A rank that dies or leaves, at every moment: what the others see, how soon, and what comes after.

At three ranks; ``--fault-sizes 2,3,8`` for others.
"""

import atexit
import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from harness.launch import Launcher
from harness.scene import (
    LARGE,
    MOMENTS,
    SHORT,
    TIMEOUT,
    WAKE_LIMIT,
    Scene,
    join,
    open_scene,
    restart,
)

pytestmark = pytest.mark.freescale_only


def die(scene: Scene) -> None:
    scene.note_time()
    os.kill(os.getpid(), signal.SIGKILL)


def exit_of_itself(scene: Scene) -> None:
    """As a process that an exception ends: the interpreter's own clean-up runs."""
    scene.note_time()
    atexit._run_exitfuncs()
    os._exit(9)


def check_loss(rank: int, size: int, moment: str, how: str) -> float | None:
    scene = open_scene(rank, size, moment)
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
    seconds = scene.expect_failure(reason)
    if size > 2:
        restart(scene, size - 1)
    return seconds


def check_loss_in_init(rank: int, size: int) -> float:
    """The last rank has told the others where it is, and then goes before they come."""
    scene = open_scene(rank, size)
    if scene.at_fault:
        threading.Timer(0.3, die, (scene,)).start()
    else:
        scene.await_fault()
    gone = f"connect to rank {size - 1}: .*(process has ended|closed the Unix socket)"
    with pytest.raises(RuntimeError, match=gone):
        join("first", rank, size)
    seconds = scene.seconds_since_fault()
    assert seconds < WAKE_LIMIT
    if size > 2:
        restart(scene, size - 1)
    return seconds


def check_loss_in_destroy(rank: int, size: int) -> None:
    """Destroying is local: it neither fails nor waits."""
    scene = open_scene(rank, size)
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
    scene = open_scene(rank, size)
    if scene.at_fault:
        return
    with pytest.raises(RuntimeError, match=f"Timed out.*rank.*{size - 1}"):
        join("incomplete", rank, size, SHORT)
    if size > 2:
        restart(scene, size - 1)


@pytest.mark.parametrize("how", ["killed", "raised"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_lost_rank(
    launch: Launcher, fault_size: int, moment: str, how: str, wake_times: list[float]
) -> None:
    dead = fault_size - 1
    seconds = launch(check_loss, fault_size, moment, how, dies={dead}, timeout=TIMEOUT)
    wake_times += seconds[:dead]


def test_rank_lost_in_init(launch: Launcher, fault_size: int, wake_times: list[float]) -> None:
    dead = fault_size - 1
    seconds = launch(check_loss_in_init, fault_size, init=False, dies={dead})
    wake_times += seconds[:dead]


def test_rank_lost_in_destroy(launch: Launcher, fault_size: int) -> None:
    launch(check_loss_in_destroy, fault_size, dies={fault_size - 1}, timeout=TIMEOUT)


def test_rank_that_never_joins(launch: Launcher, fault_size: int) -> None:
    launch(check_absence, fault_size, init=False)
