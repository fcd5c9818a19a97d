"""One rank of a job on emulated hosts: what runs in each process that the launcher starts."""

import ctypes
import faulthandler
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from harness.footprint import Footprint, wait_for_return
from harness.launch import LAUNCH_LIMIT
from namespaces import Door

PR_SET_PDEATHSIG = 1

_words: Path | None = None


@dataclass(frozen=True)
class Part:
    """What is the same on all ranks of a job.

    Attributes:
        body: Called with rank, world size and ``arguments``.
        arguments: Further arguments of ``body``.
        doors: To the host of each rank.
        environments: Of each rank, for torch.distributed.
        backend: Of the default group; None: the body makes its groups itself.
        timeout: Of the default group, in seconds.
        limit: Seconds until the stack of a rank that still runs is logged.
        return_limit: Seconds within which the process must hold no more than before; None: it need
            not.
        directory: For process ids and words.
    """

    body: Callable[..., Any]
    arguments: tuple[Any, ...]
    doors: tuple[Door, ...]
    environments: tuple[dict[str, str], ...]
    backend: str | None
    timeout: float
    limit: float
    return_limit: float | None
    directory: Path


def run_on_host(rank: int, world_size: int, part: Part) -> Any:
    """What each process does."""
    global _words
    _words = part.directory
    os.environ.update(part.environments[rank])
    move_to_host(part.doors[rank], part.directory / f"pid{rank}")
    faulthandler.dump_traceback_later(part.limit, exit=False)
    before = Footprint.take()
    if part.backend is not None:
        dist.init_process_group(part.backend, timeout=timedelta(seconds=part.timeout))
    value = part.body(rank, world_size, *part.arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    if part.return_limit is not None:
        excess = wait_for_return(before, part.return_limit)
        assert not excess, f"left behind after destroy_process_group: {'; '.join(excess)}"
    return value


def move_to_host(door: Door, pid_file: Path) -> None:
    """Goes on in a child on the host: a process cannot change its own PID namespace.

    The process from before stays outside, ends as the child does, and takes it along when killed:
    to the launcher they are one.
    """
    # Its thread would be missing in the child, which then would wait for its end for ever.
    faulthandler.cancel_dump_traceback_later()
    door.enter()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # Makes ATen's pool anew, which does not survive a fork, before several threads would.
        torch.set_num_threads(1)
        await_file(pid_file)
        return
    # Complete from the start for who looks.
    draft = pid_file.with_suffix(".draft")
    draft.write_text(str(child))
    draft.rename(pid_file)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        faulthandler.disable()  # The child has said where.
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def await_file(path: Path) -> None:
    deadline = time.monotonic() + LAUNCH_LIMIT
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} after {LAUNCH_LIMIT:.0f} s"
        time.sleep(0.005)


def say(word: str) -> None:
    """Tells the test, and all ranks; in body code. Not by the network, which may be broken."""
    assert _words is not None, "called outside of a rank"
    (_words / f"word-{word}").touch()


def was_said(word: str) -> bool:
    """Whether the test, or any rank, has said it."""
    assert _words is not None, "called outside of a rank"
    return (_words / f"word-{word}").exists()


def await_word(word: str) -> None:
    """Waits until the test, or any rank, has said it."""
    assert _words is not None, "called outside of a rank"
    await_file(_words / f"word-{word}")


def serve_store(door: Door, timeout: float, channel: Connection) -> None:
    """Serves the store that ranks meet in, as torchrun's agent does, so that any rank may die."""
    Door(door.pid, ("net",)).enter()
    server = dist.TCPStore(
        *("127.0.0.1", 0),
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout),
    )
    channel.send(server.port)
    # Until the other end is closed: at the latest, when the test's process ends.
    channel.poll(None)
