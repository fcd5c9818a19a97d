"""Ranks that stay, and run one program after the other."""

import contextlib
import multiprocessing
import random
import threading
from multiprocessing.connection import Connection, wait
from types import TracebackType

import torch.distributed as dist

import freescale_pg as fs
from harness.call_site import CallSite
from harness.issue import ISSUERS
from harness.launch import Launcher
from harness.program import Program, memberships

# Of every operation, in seconds; not a measure of speed, but the end of a hang.
TIMEOUT = 60.0


class Pool:
    """Processes for programs of one world size. They start with the first program, and anew after
    one that has broken them.

    Args:
        launch: Starts them.
        world_size: Ranks.
        limit: Seconds that they may live, all programs together.
    """

    def __init__(self, launch: Launcher, world_size: int, limit: float) -> None:
        self._launch = launch
        self._world_size = world_size
        self._limit = limit
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self._send(None)
        failure = self._join()
        if failure is not None and error is None:
            raise failure

    def run(self, program: Program) -> None:
        """Runs a program on all ranks.

        Raises:
            AssertionError: A tensor holds something else than it must.
            RanksFailed: A call raised, a rank died or hung.
        """
        __tracebackhide__ = True
        if self._thread is None:
            self._start()
        self._send(program)
        problems: list[str] = []
        waiting = list(self._channels)
        while waiting:
            ready = wait([*waiting, self._ended])
            if self._ended in ready:
                raise self._join() or AssertionError("the ranks ended by themselves")
            for channel in [channel for channel in waiting if channel in ready]:
                found = channel.recv()
                if found is None:
                    self._send(None)  # Ranks that wait for a program shall not wait any more.
                    continue
                problems += found
                waiting.remove(channel)
        assert not problems, "\n".join(problems)

    def _send(self, program: Program | None) -> None:
        for channel in self._channels:
            # Ranks that have ended say why through the launcher.
            with contextlib.suppress(BrokenPipeError):
                channel.send(program)

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        pairs = [context.Pipe() for _ in range(self._world_size)]
        self._channels = [ours for ours, _ in pairs]
        self._ended, ending = context.Pipe(duplex=False)
        self._failure = None
        self._thread = threading.Thread(
            target=self._keep, args=([theirs for _, theirs in pairs], ending)
        )
        self._thread.start()

    def _keep(self, channels: list[Connection], ending: Connection) -> None:
        """The thread that waits for the ranks' end."""
        try:
            self._launch(serve, self._world_size, channels, timeout=TIMEOUT, limit=self._limit)
        except BaseException as failure:
            self._failure = failure
        finally:
            ending.close()
            for channel in channels:
                channel.close()

    def _join(self) -> BaseException | None:
        assert self._thread is not None
        self._thread.join()
        self._thread = None
        for channel in (*self._channels, self._ended):
            channel.close()
        return self._failure


def serve(rank: int, world_size: int, channels: list[Connection]) -> None:
    """What each rank does: runs programs until there is none."""
    groups = make_groups(world_size)
    while (program := channels[rank].recv()) is not None:
        try:
            found = run(program, groups, rank)
        except BaseException:
            channels[rank].send(None)
            raise
        channels[rank].send(found)


def make_groups(world_size: int) -> list[dist.ProcessGroup | None]:
    """The groups of :func:`harness.program.memberships`; None where this rank is no member."""
    groups: list[dist.ProcessGroup | None] = [dist.group.WORLD]
    levels = [fs.Priority.URGENT, fs.Priority.BACKGROUND, None, fs.Priority.HIGH, None]
    for ranks, level in zip(memberships(world_size)[1:], levels, strict=True):
        options = None if level is None else fs.Options(priority=level)
        group = dist.new_group(ranks, pg_options=options)
        groups.append(group if dist.get_rank() in ranks else None)
    return groups


def run(program: Program, groups: list[dist.ProcessGroup | None], rank: int) -> list[str]:
    """Runs one rank's part of a program.

    Returns:
        What is wrong with the tensors; empty if nothing.
    """
    problems: list[str] = []
    pending: list[tuple[CallSite, list[dist.Work]]] = []
    for position in program.issue_order(rank):
        call = program.calls[position]
        group = groups[call.group]
        if group is None:
            continue
        # Not the position: shrinking should not change the contents of the calls that it keeps.
        site = CallSite(call, program.calls[:position].count(call), group)
        with fs.priority(fs.Priority.NORMAL if site.priority is None else site.priority):
            works = ISSUERS[call.kind](site)
        if call.blocking:
            assert not works, call
            problems += check(site)
        else:
            pending.append((site, works))
    choice = random.Random(f"wait {program.order} {rank}")
    choice.shuffle(pending)
    for site, works in pending:
        choice.shuffle(works)
        for work in works:
            finish(work, choice)
        problems += check(site)
    return problems


def finish(work: dist.Work, choice: random.Random) -> None:
    """Waits for a work in one of the ways there are."""
    way = choice.choice(["wait", "poll", "future", "twice"])
    if way == "poll":
        pause = threading.Event()
        while not work.is_completed():
            pause.wait(0.0005)
    elif way == "future":
        work.get_future().wait()
    elif way == "twice":
        work.wait()
    work.wait()


def check(site: CallSite) -> list[str]:
    try:
        site.check()
    except AssertionError as problem:
        return [str(problem)]
    return []
