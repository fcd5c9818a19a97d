"""A training of any number of ranks, step by step, with all ranks' times in arrays."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.breakdown import Breakdown, Ledger
from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.fluid_links import FluidLinks
from freescale_pg.simulate.load import Loads
from freescale_pg.simulate.regime import Regime
from freescale_pg.simulate.schedule import (
    Begin,
    Compute,
    Flow,
    Instruction,
    Meanwhile,
    Post,
    Traffic,
    Wait,
)

FloatArray = npt.NDArray[np.float64]

_ALL = slice(None)
# Nobody waits for an exchange of so many steps ago.
_KEPT_STEPS = 3


class FluidSimulation:
    """Goes through the program of all ranks once, with a clock for each of them.

    Exchanges start one after the other, each when its last rank asks for it. That time is known as
    soon as the slowest rank has got there, and whatever the others do until then does not depend on
    it, so nothing is ever started in the past.

    Args:
        cluster: The machine.
        loads: What the ranks do.
        regime: How they communicate.
    """

    def __init__(self, cluster: Cluster, loads: Loads, regime: Regime) -> None:
        self._loads = loads
        self._regime = regime
        self._links = FluidLinks(cluster)
        self._ledger = Ledger(cluster.ranks)
        self._clock = np.zeros(cluster.ranks)
        # What goes on meanwhile, and when each rank came to it.
        self._meanwhile: list[tuple[Meanwhile, FloatArray]] = []

    @property
    def starved(self) -> int:
        """Exchanges that the scheduler would have let climb; see :class:`FluidLinks`."""
        return self._links.starved

    def run(self, warm_up: int) -> Breakdown:
        """Runs all steps.

        Args:
            warm_up: Steps that are not counted.

        Returns:
            Where the time of the others went.
        """
        counted_from = self._clock
        for step in range(self._loads.steps):
            if step == warm_up:
                self._ledger.clear()
                counted_from = self._clock.copy()
            for instruction in self._regime.schedule(step, self._loads.buckets):
                self._do(instruction)
            self._forget(step - _KEPT_STEPS)
        return self._ledger.total(self._loads.steps - warm_up, self._clock - counted_from)

    def _do(self, instruction: Instruction) -> None:
        match instruction:
            case Post(flow):
                self._start(flow, float(self._settled(lambda: self._clock).max()))
            case Wait(flow):
                self._wait(flow)
            case Compute():
                self._compute(instruction)
            case Meanwhile():
                self._meanwhile.append((instruction, self._clock.copy()))
            case Begin():
                pass

    def _wait(self, flow: Flow) -> None:
        while any(each.flow == flow for each, _ in self._meanwhile):
            self._start_meanwhile(before=np.inf)
        if flow not in self._links:
            return
        done = self._settled(lambda: self._links.done(flow))
        self._ledger.waited(flow.traffic, self._clock, self._links.start_of(flow), done, _ALL)
        self._clock = np.maximum(self._clock, done)

    def _compute(self, compute: Compute) -> None:
        work = self._loads.seconds(compute)
        slowdown = self._regime.slowdown
        end = self._settled(lambda: self._links.end_of_compute(self._clock, work, slowdown))
        self._ledger.compute += work
        self._ledger.slowdown += end - self._clock - work
        self._clock = end

    def _settled(self, times: Callable[[], FloatArray]) -> FloatArray:
        """Returns times once nothing that goes on meanwhile can change them any more."""
        while True:
            value = times()
            if not self._start_meanwhile(float(value.max())):
                return value

    def _start_meanwhile(self, before: float) -> bool:
        """Starts the first exchange that is asked for meanwhile, if that is before some time."""
        asked = [(self._ready(each, since), each) for each, since in self._meanwhile]
        if not asked:
            return False
        start, first = min(asked, key=lambda entry: entry[0])
        if start >= before:
            return False
        self._meanwhile = [entry for entry in self._meanwhile if entry[0] is not first]
        self._start(first.flow, start)
        return True

    def _ready(self, meanwhile: Meanwhile, since: FloatArray) -> float:
        times = [self._links.done(flow) for flow in meanwhile.after if flow in self._links]
        return float(np.max([since, *times]))

    def _start(self, flow: Flow, start: float) -> None:
        exchange = self._loads.exchange(flow, is_split=self._regime.is_split)
        self._links.add(flow, self._regime.level(flow.traffic), exchange, start)

    def _forget(self, step: int) -> None:
        flows = [Flow(traffic, step) for traffic in Traffic if traffic is not Traffic.BUCKETS]
        flows += [Flow(Traffic.BUCKETS, step, part) for part in range(self._loads.buckets)]
        self._links.forget(flows, float(self._clock.min()))
