"""Starts the ranks of a test, waits for them within a limit, and reports what went wrong where."""

import itertools
import multiprocessing
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from harness.rank import Report, Setting, run_rank

# Seconds. Generous: the machine may be busy with other work, and a hang is caught either way.
GROUP_TIMEOUT = 60.0
LAUNCH_LIMIT = 90.0
# How long the other ranks may go on once one has failed. Backends wake them; a test body need not.
GRACE_AFTER_FAILURE = 8.0
# Counted in each rank, which may have been slow to start.
STACKS_BEFORE_END = 3.0
LOG_TAIL = 4000  # characters


# What bodies use, so that each rank need not import it: the compiler alone takes seconds.
PRELOADED = [
    "pytest",
    "torch",
    "torch.distributed",
    "torch.distributed.optim",
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
]


class RanksFailed(AssertionError):
    """At least one rank failed; the message has the traceback and the output of each."""


def start_fork_server(further: Collection[str] = ()) -> None:
    """Prepares a process with torch loaded, from which ranks are forked in milliseconds.

    It is clean: no threads, no groups, nothing of what earlier tests did.

    Args:
        further: Modules to load besides :data:`PRELOADED`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, *further])


class Launcher:
    """Runs test bodies on new processes.

    Args:
        backend: Of the default group, where a launch names no other.
        store: The server that ranks find each other by. It lives in the test process, so that any
            rank may die.
        directory: For logs and files of the ranks.
    """

    _numbers = itertools.count()

    def __init__(self, backend: str, store: dist.TCPStore, directory: Path) -> None:
        self.backend = backend
        self._store = store
        self._directory = directory

    def __call__(
        self,
        body: Callable[..., Any],
        world_size: int,
        *arguments: Any,
        init: bool = True,
        backend: str | None = None,
        timeout: float = GROUP_TIMEOUT,
        limit: float = LAUNCH_LIMIT,
        store: str = "tcp",
        dies: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        checks_footprint: bool | None = None,
        return_limit: float = 5.0,
    ) -> list[Any]:
        """Runs ``body(rank, world_size, *arguments)`` on every rank.

        Args:
            body: A function at the top level of its module.
            world_size: Ranks.
            arguments: Further arguments of ``body``.
            init: Make the default group before the body and destroy it after.
            backend: Of the default group; None: the launcher's.
            timeout: Of the default group, in seconds.
            limit: Seconds for the whole launch.
            store: "tcp" or "file".
            dies: Ranks that are to die without a report.
            environment: Set in the ranks.
            checks_footprint: Whether descriptors, threads and segments must be given back; None:
                if the backend is ours.
            return_limit: Seconds within which they must be.

        Returns:
            The values that the bodies returned, by rank; None for the dead.

        Raises:
            RanksFailed: A rank raised, died, left something behind, or ran into the limit; or one
                of ``dies`` lived.
        """
        __tracebackhide__ = True
        chosen = backend or self.backend
        directory = self._directory / f"launch{next(self._numbers)}"
        directory.mkdir()
        setting = Setting(
            body=body,
            arguments=arguments,
            world_size=world_size,
            backend=chosen if init else None,
            timeout=timeout,
            limit=limit - STACKS_BEFORE_END,
            store=store,
            store_port=self._store.port,
            store_key=directory.name,
            directory=directory,
            environment=dict(environment or {}),
            checks_footprint=chosen == "freescale"
            if checks_footprint is None
            else checks_footprint,
            return_limit=return_limit,
        )
        reports = _run(setting, limit, dies)
        _judge(setting, reports, dies)
        return [report.value for report in reports]


def _run(setting: Setting, limit: float, dies: Collection[int]) -> list[Report]:
    context = multiprocessing.get_context("forkserver")
    processes: list[ForkServerProcess] = []
    receivers: list[Connection] = []
    for rank in range(setting.world_size):
        receiver, sender = context.Pipe(duplex=False)
        # Not daemonic: a daemon may not have children, such as the workers of a DataLoader.
        process = context.Process(target=run_rank, args=(setting, rank, sender))
        process.start()
        sender.close()
        processes.append(process)
        receivers.append(receiver)
    try:
        return _collect(processes, receivers, limit, dies)
    finally:
        for process, receiver in zip(processes, receivers, strict=True):
            process.kill()
            process.join()
            process.close()
            receiver.close()


def _collect(
    processes: list[ForkServerProcess],
    receivers: list[Connection],
    limit: float,
    dies: Collection[int],
) -> list[Report]:
    """Waits for one report of every rank, or its end."""
    deadline = time.monotonic() + limit
    reports: dict[int, Report] = {}
    ranks = {id(receiver): rank for rank, receiver in enumerate(receivers)}
    waiting = list(receivers)
    while waiting:
        left = deadline - time.monotonic()
        ready = wait(waiting, timeout=max(left, 0))
        if not ready:
            for receiver in waiting:
                reports[ranks[id(receiver)]] = Report(failure=f"still ran after {limit:.0f} s")
            break
        for receiver in ready:
            assert isinstance(receiver, Connection)
            rank = ranks[id(receiver)]
            waiting.remove(receiver)
            reports[rank] = _receive(processes[rank], receiver)
            if reports[rank].failure is not None and rank not in dies:
                deadline = min(deadline, time.monotonic() + GRACE_AFTER_FAILURE)
    return [reports[rank] for rank in range(len(processes))]


def _receive(process: ForkServerProcess, receiver: Connection) -> Report:
    try:
        report = receiver.recv()
    except EOFError:
        process.join()
        return Report(failure=f"ended with exit code {process.exitcode} and no report")
    assert isinstance(report, Report)
    return report


def _judge(setting: Setting, reports: list[Report], dies: Collection[int]) -> None:
    __tracebackhide__ = True
    ranks_of: dict[str, list[str]] = {}
    for rank, report in enumerate(reports):
        if report.failure is not None and rank not in dies:
            text = f"{report.failure}\n{_tail(setting.log_of(rank))}"
            ranks_of.setdefault(text, []).append(f"rank {rank}")
    failures = [f"{', '.join(ranks)}: {text}" for text, ranks in ranks_of.items()]
    failures += [
        f"rank {rank}: was to die and lived\n"
        for rank, report in enumerate(reports)
        if report.failure is None and rank in dies
    ]
    if failures:
        raise RanksFailed(f"{setting.body.__name__}\n" + "".join(failures))


def _tail(log: Path) -> str:
    if not log.exists():
        return ""
    text = log.read_text(errors="replace")[-LOG_TAIL:]
    return "".join(f"    | {line}\n" for line in text.splitlines())
