"""Ranks that do what they are asked, so that contestants in different processes take turns.

Rank 0 gets the requests through a Unix socket, which also reaches ranks in network namespaces of
their own, and passes them on. Ranks that are asked for nothing block.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import torch.distributed as dist

from freescale_pg.bench.launch import LaunchError
from freescale_pg.bench.ranks import Ranks

# Seconds. A machine may be busy: all ranks load torch at once.
_START_LIMIT = 180.0
_ANSWER_LIMIT = 240.0
_LEAVE_LIMIT = 60.0
_LOOK_EVERY = 0.2


def serve(path: str, ranks: Ranks, member: object) -> None:
    """Carries out requests until there are no more; the body of a rank.

    Args:
        path: Of the coordinator's socket.
        ranks: This one's place.
        member: Whose methods may be asked for; each is called on all ranks at once.
    """
    coordinator = Client(path, "AF_UNIX") if ranks.rank == 0 else None
    while True:
        request = [None if coordinator is None else _next_request(coordinator)]
        dist.broadcast_object_list(request, src=0)
        if request[0] is None:
            return
        method, arguments = request[0]
        answers: list[Any] | None = None if coordinator is None else [None] * ranks.world_size
        dist.gather_object(getattr(member, method)(*arguments), answers)
        if coordinator is not None:
            coordinator.send(answers)


def _next_request(coordinator: Connection[Any, Any]) -> Any:
    """Returns None when the coordinator is gone: then all ranks leave."""
    try:
        return coordinator.recv()
    except EOFError:
        return None


class ServedRanks:
    """The ranks of one contestant, as the coordinator sees them."""

    def __init__(
        self, connection: Connection[Any, Any], processes: Sequence[subprocess.Popen[bytes]]
    ) -> None:
        self._connection = connection
        self._processes = processes

    def ask(self, method: str, *arguments: object) -> list[Any]:
        """Has all ranks call a method of their member; returns what each of them returns.

        Raises:
            LaunchError: A rank failed, its own message is on stderr; or no answer came in time.
        """
        deadline = time.monotonic() + _ANSWER_LIMIT
        try:
            self._connection.send((method, arguments))
            while not self._connection.poll(_LOOK_EVERY):
                _check(self._processes, deadline, f"{method} took too long")
            answers: list[Any] = self._connection.recv()
        except (EOFError, ConnectionError):
            raise LaunchError(f"a rank ended while all were asked to {method}") from None
        return answers


@contextmanager
def served_ranks(
    path: Path, start: Callable[[], AbstractContextManager[Sequence[subprocess.Popen[bytes]]]]
) -> Iterator[ServedRanks]:
    """Starts ranks that call :func:`serve`, and has them leave at the end of the block.

    Args:
        path: Of the socket that they are to connect to.
        start: Starts their processes, and ends those that are left after its block.

    Raises:
        LaunchError: A rank ended early, or they did not come in time.
    """
    deadline = time.monotonic() + _START_LIMIT
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen(1)
        door.settimeout(_LOOK_EVERY)
        with start() as processes:
            with _first_guest(door, processes, deadline) as connection:
                yield ServedRanks(connection, processes)
            _await_leaving(processes)


def _await_leaving(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits for the ends of ranks; those that take too long are ended by who started them."""
    deadline = time.monotonic() + _LEAVE_LIMIT
    try:
        for process in processes:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        print(f"ranks still ran {_LEAVE_LIMIT:g} s after their last answer", file=sys.stderr)


def _first_guest(
    door: socket.socket, processes: Sequence[subprocess.Popen[bytes]], deadline: float
) -> Connection[Any, Any]:
    while True:
        try:
            accepted = door.accept()[0]
        except TimeoutError:
            _check(processes, deadline, "the ranks did not come in time")
        else:
            accepted.setblocking(True)
            return Connection(accepted.detach())


def _check(processes: Sequence[subprocess.Popen[bytes]], deadline: float, late: str) -> None:
    for process in processes:
        if process.poll() is not None:
            raise LaunchError(f"a rank ended with status {process.returncode}")
    if time.monotonic() > deadline:
        raise LaunchError(late)
