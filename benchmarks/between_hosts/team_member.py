"""One rank of a contestant between hosts: does what its coordinator asks, call by call."""

from __future__ import annotations

import mmap
import time
from dataclasses import dataclass
from multiprocessing.connection import Client
from pathlib import Path

from between_hosts.plain_tcp import PlainTcp
from freescale_pg.bench.cells import Cell
from freescale_pg.bench.contestants import Call, Contestant, TorchBackend
from freescale_pg.bench.exchange import Exchange, group_of_priority
from freescale_pg.bench.interleave import timed_call
from freescale_pg.bench.priority import Schedule
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.spin_barrier import SpinBarrier
from freescale_pg.bench.workload import Workload

TCP_PORT = 29400
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Membership:
    """What a member is told at its start.

    Attributes:
        backend: of torch, or the name of plain TCP.
        socket: of the coordinator, in a folder that all hosts see.
        page: a file of zeros there, for the barrier.
        address: of host 0.
    """

    backend: str
    socket: str
    page: Path
    address: str


def serve(rank: int, world_size: int, membership: Membership) -> None:
    """Carries out requests until there are no more; the body of a rank."""
    with membership.page.open("r+b") as page:
        mapping = mmap.mmap(page.fileno(), PAGE_BYTES)
    member = Member(Ranks(rank, world_size, None), mapping, membership)
    with Client(membership.socket, "AF_UNIX") as coordinator:
        coordinator.send(rank)
        while True:
            try:
                method, arguments = coordinator.recv()
            except EOFError:
                return
            coordinator.send(getattr(member, method)(*arguments))


class Member:
    """What may be asked of a rank. All ranks of the team are asked the same at the same time."""

    def __init__(self, ranks: Ranks, mapping: mmap.mmap, membership: Membership) -> None:
        self._ranks = ranks
        self._backend = membership.backend
        # Yielding: the hosts share the cores, and the backends' own threads need them too.
        self._barrier = SpinBarrier(ranks, True, mapping)
        self._workload: Workload | None = None  # calls keep no tensors alive
        self._call: Call | None = None
        self._contestant: Contestant
        if membership.backend == PlainTcp.name:
            self._contestant = PlainTcp(ranks.rank, membership.address, TCP_PORT)
        else:
            self._contestant = TorchBackend(membership.backend)

    def prepare(self, op: str, size: int) -> None:
        """Makes the tensors of a cell and checks one result.

        Raises:
            RuntimeError: it is wrong.
        """
        workload = Workload(Cell(op, size, self._ranks.world_size), self._ranks.rank)
        workload.poison()
        self._call = self._contestant.prepare(workload)
        self._barrier.wait()
        self._call()
        if self._contestant.fills_output(op) and not workload.is_correct():
            raise RuntimeError(f"{self._backend}: wrong result of {workload.cell}")
        workload.settle()
        self._workload = workload

    def time_calls(self, count: int) -> list[float]:
        """Seconds of each of ``count`` calls that all ranks enter together."""
        assert self._call is not None
        return [timed_call(self._call, self._barrier) for _ in range(count)]

    def call(self, count: int) -> None:
        """Makes the calls, untimed."""
        assert self._call is not None
        for _ in range(count):
            self._call()

    def cpu_of_a_call(self, count: int) -> float:
        """CPU seconds of the whole process for one of ``count`` calls in a row."""
        before = time.process_time()
        self.call(count)
        return (time.process_time() - before) / count

    def idle(self, seconds: float) -> float:
        """Sleeps with the groups open; returns the CPU seconds of the whole process meanwhile."""
        before = time.process_time()
        time.sleep(seconds)
        return time.process_time() - before

    def prepare_priorities(self, urgent: int, bulk: int) -> None:
        """Makes an urgent and a background exchange of so many bytes, each with its group."""
        self._urgent = Exchange(urgent, self._ranks, group_of_priority(self._backend, "URGENT"))
        self._bulk = Exchange(bulk, self._ranks, group_of_priority(self._backend, "BACKGROUND"))
        self._urgent.run()
        self._bulk.run()

    def beside_bulk(
        self, ticks: int, interval: float, urgent: bool, bulk: bool
    ) -> tuple[list[list[float]], float]:
        """Goes through a schedule of urgent calls, a bulk exchange, or both.

        Returns:
            What ``priority.Schedule.run`` notes (as lists: tensors travel in files, which this host
            does not share), and the seconds of the bulk exchange.
        """
        self._barrier.wait()
        flight = self._bulk.start() if bulk else None
        schedule = Schedule(self._barrier, interval)
        notes = schedule.run(ticks, self._urgent if urgent else None, flight)
        return notes.tolist(), flight.wait() if flight is not None else 0.0
