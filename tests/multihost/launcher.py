"""Ranks on emulated hosts: test bodies in processes of their own, or a program under torchrun."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from harness.launch import (
    GRACE_AFTER_FAILURE,
    GROUP_TIMEOUT,
    LAUNCH_LIMIT,
    LOG_TAIL,
    STACKS_BEFORE_END,
    Launcher,
    RanksFailed,
)
from host_rank import Part, run_on_host, serve_store
from namespaces import STEP_LIMIT, Door
from network import Network

MASTER_PORT = 29500


class Job:
    """Ranks that run, while the test does something to them or to their network.

    Args:
        run: Starts them and waits for their end.
        directory: Where they write process ids and words.
    """

    def __init__(self, run: Callable[[], list[Any]], directory: Path) -> None:
        self._directory = directory
        self._values: list[Any] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._keep, args=(run,))
        self._thread.start()

    def _keep(self, run: Callable[[], list[Any]]) -> None:
        try:
            self._values = run()
        except BaseException as failure:
            self._failure = failure

    def wait(self) -> list[Any]:
        """Waits for the end of all ranks; returns or raises as :meth:`Ranks.__call__`."""
        __tracebackhide__ = True
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._values

    def is_over(self) -> bool:
        """Whether all ranks have ended: :meth:`wait` then returns at once."""
        return not self._thread.is_alive()

    def kill(self, rank: int) -> None:
        """Ends the process at once, as ``kill -9`` does."""
        os.kill(self.pid(rank), signal.SIGKILL)

    def stop(self, rank: int) -> None:
        """Freezes the process. When this returns, none of its threads runs."""
        pid, deadline = self.pid(rank), time.monotonic() + STEP_LIMIT
        os.kill(pid, signal.SIGSTOP)
        while _states(pid) != {"T"}:
            assert time.monotonic() < deadline, f"rank {rank} does not stop"
            time.sleep(0.001)

    def resume(self, rank: int) -> None:
        os.kill(self.pid(rank), signal.SIGCONT)

    def pid(self, rank: int) -> int:
        """The rank's process id on this machine; waits until it is on its host."""
        return int(self._await(f"pid{rank}").read_text())

    def say(self, word: str) -> None:
        """Lets ranks go on that wait in :func:`host_rank.await_word`."""
        (self._directory / f"word-{word}").touch()

    def await_word(self, word: str) -> None:
        """Waits until a rank has called :func:`host_rank.say`."""
        self._await(f"word-{word}")

    def _await(self, name: str) -> Path:
        __tracebackhide__ = True
        path = self._directory / name
        # The limit of the job ends this too.
        while not path.exists():
            if not self._thread.is_alive():
                self.wait()
                raise AssertionError(f"the ranks ended without {name}")
            time.sleep(0.005)
        return path


class Ranks:
    """Runs test bodies on the hosts of a network, without torchrun and its restarts.

    Args:
        backend: Of the default group, where a launch names no other.
        directory: For logs and files of the ranks. All hosts must see it.
    """

    def __init__(self, backend: str, directory: Path) -> None:
        # Nobody's: no address of this process can be reached from a host.
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.directory = directory
        self._launch = Launcher(backend, store, directory)
        self._jobs: list[Job] = []

    def __call__(
        self,
        network: Network,
        per_host: int | Sequence[int],
        body: Callable[..., Any],
        *arguments: Any,
        **options: Any,
    ) -> list[Any]:
        """As :meth:`start`, and waits.

        Returns:
            The values that the bodies returned, by rank; None for the dead.

        Raises:
            RanksFailed: A rank raised, died, left something behind, or ran into the limit; or one
                of ``dies`` lived. The message has its traceback and output.
        """
        __tracebackhide__ = True
        return self.start(network, per_host, body, *arguments, **options).wait()

    def start(
        self,
        network: Network,
        per_host: int | Sequence[int],
        body: Callable[..., Any],
        *arguments: Any,
        init: bool = True,
        backend: str | None = None,
        timeout: float = GROUP_TIMEOUT,
        limit: float = LAUNCH_LIMIT,
        dies: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        checks_footprint: bool | None = None,
        return_limit: float = 5.0,
        family: int = 4,
    ) -> Job:
        """Starts ``body(rank, world_size, *arguments)`` on every rank.

        Args:
            network: Where.
            per_host: Ranks on each host; a sequence: on the first, the second...
            body: A function at the top level of its module.
            arguments: Further arguments of ``body``.
            init: Make the default group before the body and destroy it after.
            backend: Of the default group; None: that of ``--backend``.
            timeout: Of the default group, in seconds.
            limit: Seconds for the whole job.
            dies: Ranks that are to die without a report.
            environment: Set in the ranks, over the variables that torchrun sets.
            checks_footprint: Whether descriptors, threads and segments must be given back; None:
                if the backend is ours.
            return_limit: Seconds within which they must be.
            family: Of the address in MASTER_ADDR.
        """
        chosen = backend or self._launch.backend
        directory = self.directory / f"job{len(self._jobs)}"
        directory.mkdir()
        counts = _counts(network, per_host)
        checks = chosen == "freescale" if checks_footprint is None else checks_footprint
        store = StoreServer(network.hosts[0].door, timeout)
        master = network.hosts[0].address(family=family)
        part = Part(
            body=body,
            arguments=arguments,
            doors=tuple(
                host.door
                for host, count in zip(network.hosts, counts, strict=True)
                for _ in range(count)
            ),
            environments=tuple(
                {**variables, **(environment or {})}
                for variables in _environments(counts, master, store.port)
            ),
            backend=chosen if init else None,
            timeout=timeout,
            limit=limit - STACKS_BEFORE_END,
            return_limit=return_limit if checks else None,
            directory=directory,
        )

        def run() -> list[Any]:
            try:
                return self._launch(
                    *(run_on_host, sum(counts), part),
                    init=False,
                    limit=limit,
                    dies=dies,
                    # For harness.rank.open_store(): any host can read the folder.
                    store="file",
                    checks_footprint=False,
                )
            finally:
                store.close()

        job = Job(run, directory)
        self._jobs.append(job)
        return job


class StoreServer:
    """The process in which :func:`host_rank.serve_store` runs."""

    def __init__(self, door: Door, timeout: float) -> None:
        context = multiprocessing.get_context("forkserver")
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=serve_store, args=(door, timeout, theirs))
        self._process.start()
        theirs.close()
        try:
            # Also the start of the fork server, which imports torch, at the first time.
            assert self._channel.poll(LAUNCH_LIMIT), "no store"
            self.port: int = self._channel.recv()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self._channel.close()


def torchrun(
    network: Network,
    per_host: int,
    program: Sequence[str],
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    family: int = 4,
    limit: float = LAUNCH_LIMIT,
    shown: bool = False,
) -> list[str]:
    """Runs a Python program on ``per_host`` ranks of every host, under an agent of torchrun each.

    Args:
        network: Where.
        per_host: Ranks on each host.
        program: Path and arguments.
        directory: For the output.
        environment: Set in the agents and thereby in the ranks.
        family: Of the address of the first agent.
        limit: Seconds until all are killed.
        shown: The first host writes to this process's output, as it is, and not to a file.

    Returns:
        What was written to the file of each host; lines begin with [default<local rank>].

    Raises:
        RanksFailed: An agent failed, as it does when a rank has. The message has all output.
    """
    __tracebackhide__ = True
    processes = []
    logs = [directory / f"torchrun-{host.name}-{host.number}.log" for host in network.hosts]
    for host, log in zip(network.hosts, logs, strict=True):
        shows = shown and host.number == 0
        command = [sys.executable, "-m", "torch.distributed.run", *([] if shows else ["--tee=3"])]
        command += [f"--nnodes={len(network.hosts)}", f"--nproc-per-node={per_host}"]
        command += [f"--node-rank={host.number}", f"--master-port={MASTER_PORT}"]
        command += [f"--master-addr={network.hosts[0].address(family=family)}", *program]
        with log.open("w") as output:
            # Of torchrun's own default, which it announces at length.
            variables = {"OMP_NUM_THREADS": "1", **(environment or {})}
            processes.append(host.popen(command, variables, None if shows else output))
    codes = _end(network, processes, limit)
    if any(codes):
        text = "".join(
            f"{host.name}: exit code {code}\n{log.read_text(errors='replace')[-LOG_TAIL:]}\n"
            for host, code, log in zip(network.hosts, codes, logs, strict=True)
        )
        raise RanksFailed(f"torchrun on {len(network.hosts)} hosts\n{text}")
    return [log.read_text(errors="replace") for log in logs]


def _end(network: Network, processes: Sequence["subprocess.Popen[str]"], limit: float) -> list[int]:
    """Waits for all; kills what runs after the limit, or a moment after another has failed."""
    deadline = time.monotonic() + limit
    running = set(range(len(processes)))
    while running and time.monotonic() < deadline:
        for number in list(running):
            code = processes[number].poll()
            if code is not None:
                running.remove(number)
                if code != 0:
                    deadline = min(deadline, time.monotonic() + GRACE_AFTER_FAILURE)
        time.sleep(0.01)
    for number in running:
        network.hosts[number].kill_all()
    return [process.wait(STEP_LIMIT) for process in processes]


def _counts(network: Network, per_host: int | Sequence[int]) -> list[int]:
    counts = [per_host] * len(network.hosts) if isinstance(per_host, int) else list(per_host)
    assert len(counts) == len(network.hosts), (counts, len(network.hosts))
    return counts


def _environments(counts: Sequence[int], master: str, port: int) -> list[dict[str, str]]:
    """What torchrun sets, for each rank."""
    return [
        {
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
            # The store is there already, so rank 0 should not make one.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "RANK": str(sum(counts[:host]) + local),
            "LOCAL_RANK": str(local),
            "GROUP_RANK": str(host),
            "WORLD_SIZE": str(sum(counts)),
            "LOCAL_WORLD_SIZE": str(count),
        }
        for host, count in enumerate(counts)
        for local in range(count)
    ]


def _states(pid: int) -> set[str]:
    """Of all threads of a process, as in /proc: the letter after its name in parentheses."""
    states = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states
