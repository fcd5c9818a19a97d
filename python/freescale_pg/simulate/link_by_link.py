"""A training of a few ranks, chunk by chunk on every link."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from freescale_pg.simulate.breakdown import Breakdown, Ledger
from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.event_queue import EventQueue
from freescale_pg.simulate.links import Links
from freescale_pg.simulate.load import Loads
from freescale_pg.simulate.processor import Processor
from freescale_pg.simulate.regime import Regime
from freescale_pg.simulate.rendezvous import Rendezvous
from freescale_pg.simulate.schedule import Begin, Compute, Flow, Instruction, Meanwhile, Post, Wait


@dataclass
class _Rank:
    """Where a rank is in its program."""

    program: list[Instruction]
    processor: Processor
    place: int = 0
    done: dict[Flow, float] = field(default_factory=dict)
    # What it waits for, and since when.
    waits: tuple[Flow, float] | None = None
    meanwhile: list[Meanwhile] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)


class LinkByLinkSimulation:
    """Lets every rank go through its program by itself.

    Args:
        cluster: The machine.
        loads: What the ranks do.
        regime: How they communicate.
    """

    def __init__(self, cluster: Cluster, loads: Loads, regime: Regime) -> None:
        self._cluster = cluster
        self._loads = loads
        self._regime = regime
        self._events = EventQueue()
        self._links = Links(cluster, self._events, self._note_busy)
        self._ledger = Ledger(cluster.ranks)
        self._exchanges: dict[Flow, Rendezvous] = {}
        program = [
            instruction
            for step in range(loads.steps)
            for instruction in regime.schedule(step, loads.buckets)
        ]
        self._ranks = [
            _Rank(program, Processor(self._events, regime.slowdown)) for _ in range(cluster.ranks)
        ]
        self._ends = np.zeros(cluster.ranks)
        self._warm_up = 0

    def run(self, warm_up: int) -> Breakdown:
        """Runs all steps; see :meth:`FluidSimulation.run`."""
        self._warm_up = warm_up
        for rank in range(self._cluster.ranks):
            self._events.at(0.0, partial(self._go_on, rank))
        self._events.run()
        begins = np.array([each.begins[warm_up] for each in self._ranks])
        return self._ledger.total(self._loads.steps - warm_up, self._ends - begins)

    def step_seconds(self) -> list[float]:
        """Returns the mean time of each step over the ranks, after :meth:`run`."""
        begins = np.array([each.begins for each in self._ranks])
        times = np.column_stack([begins, self._ends])
        means: list[float] = np.diff(times, axis=1).mean(axis=0).tolist()
        return means

    def _go_on(self, rank: int) -> None:
        """Goes through a rank's program as far as it gets now."""
        state = self._ranks[rank]
        while state.place < len(state.program):
            instruction = state.program[state.place]
            state.place += 1
            match instruction:
                case Begin(step):
                    state.begins.append(self._events.now)
                    if step == self._warm_up:
                        self._ledger.clear(slice(rank, rank + 1))
                case Post(flow):
                    self._ask(rank, flow)
                case Meanwhile():
                    state.meanwhile.append(instruction)
                    self._ask_meanwhile(rank)
                case Wait(flow):
                    if self._must_wait(rank, flow):
                        state.waits = (flow, self._events.now)
                        return
                case Compute():
                    self._compute(rank, instruction)
                    return
        self._ends[rank] = self._events.now

    def _must_wait(self, rank: int, flow: Flow) -> bool:
        exchange = self._exchanges.get(flow)
        was_asked = exchange is not None and exchange.has_asked(rank)
        return was_asked and flow not in self._ranks[rank].done

    def _compute(self, rank: int, compute: Compute) -> None:
        seconds = float(self._loads.seconds(compute)[rank])
        begin = self._events.now

        def done() -> None:
            self._ledger.compute[rank] += seconds
            self._ledger.slowdown[rank] += self._events.now - begin - seconds
            self._go_on(rank)

        self._ranks[rank].processor.compute(seconds, done)

    def _ask(self, rank: int, flow: Flow) -> None:
        exchange = self._exchanges.get(flow)
        if exchange is None:
            moved = self._loads.exchange(flow, is_split=self._regime.is_split)
            exchange = Rendezvous(
                moved.pair_bytes(self._cluster),
                self._links,
                self._regime.level(flow.traffic),
                partial(self._moved, flow),
            )
            self._exchanges[flow] = exchange
        exchange.ask(rank, self._events.now)

    def _ask_meanwhile(self, rank: int) -> None:
        state = self._ranks[rank]
        ready = [
            each
            for each in state.meanwhile
            if not any(self._must_wait(rank, flow) for flow in each.after)
        ]
        for each in ready:
            state.meanwhile.remove(each)
            self._ask(rank, each.flow)

    def _moved(self, flow: Flow, rank: int) -> None:
        at = self._events.now + self._cluster.latency_seconds
        self._events.at(at, partial(self._arrived, flow, rank))

    def _arrived(self, flow: Flow, rank: int) -> None:
        state, now = self._ranks[rank], self._events.now
        state.done[flow] = now
        self._ask_meanwhile(rank)
        if state.waits is None or state.waits[0] != flow:
            return
        _, since = state.waits
        state.waits = None
        asked = self._exchanges[flow].last_asked
        self._ledger.waited(
            flow.traffic, np.array([since]), asked, np.array([now]), slice(rank, rank + 1)
        )
        self._go_on(rank)

    def _note_busy(self, rank: int, until: float) -> None:
        self._ranks[rank].processor.note_busy(until)
