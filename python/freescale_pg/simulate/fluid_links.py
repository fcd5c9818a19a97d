"""The links of all ranks at once, each a queue that drains at the link's rate.

For worlds in which a queue for each pair of ranks would be too many. Each rank has four queues: its
link to the host's other ranks and its network card, each way. An exchange starts everywhere when
the last rank asks for it. A queue serves what is more urgent first, and of equals what came first;
it is left in the middle of a chunk, of which it would really finish the present one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.exchange import NIC_IN, NIC_OUT, NVLINK_IN, NVLINK_OUT, PORTS, Exchange
from freescale_pg.simulate.level_queue import AGING_SECONDS
from freescale_pg.simulate.schedule import Flow

FloatArray = npt.NDArray[np.float64]

_OUT = [NVLINK_OUT, NIC_OUT]
_IN = [NVLINK_IN, NIC_IN]


@dataclass
class _Transfer:
    """An exchange under way.

    Attributes:
        place: What is served first, and of equals in which order.
        start: When the last rank asked for it.
        takes_part: Which queues carry something of it; shape ``[PORTS, W]``.
        finish: When each queue is done with it and with all that goes first, unless something more
            urgent comes.
        starved: Whether it was counted as such.
    """

    place: tuple[int, int]
    start: float
    takes_part: npt.NDArray[np.bool_]
    finish: FloatArray
    starved: bool = False


class FluidLinks:
    """Queues of exchanges.

    Args:
        cluster: The machine.

    Attributes:
        starved: Exchanges that waited so long for more urgent ones that the scheduler would have
            let them climb, which this model does not.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        rates = np.full((PORTS, 1), np.inf)
        rates[_OUT, 0] = cluster.nvlink_bytes_per_second, cluster.nic_bytes_per_second
        if cluster.limits_ingress:
            rates[_IN] = rates[_OUT]
        self._rates = rates
        self._now = 0.0
        self._serial = 0
        self._active: list[_Transfer] = []
        self._known: dict[Flow, _Transfer] = {}
        # From when on each rank's links are busy until when, if nothing is added; ascending.
        self._busy: list[tuple[float, FloatArray]] = [(-np.inf, np.full(cluster.ranks, -np.inf))]
        self.starved = 0

    def __contains__(self, flow: Flow) -> bool:
        return flow in self._known

    def add(self, flow: Flow, level: int, exchange: Exchange, start: float) -> None:
        """Starts an exchange.

        Args:
            flow: Its name.
            level: 0 is the most urgent.
            exchange: What it moves.
            start: Not before the last one's.
        """
        self._now = max(start, self._now)
        self._serial += 1
        seconds = exchange.port_bytes(self._cluster) / self._rates
        transfer = _Transfer((level, self._serial), self._now, seconds > 0, seconds)
        self._active = [each for each in self._active if (each.finish > self._now).any()]
        before = [each for each in self._active if each.place < transfer.place]
        free = np.full_like(seconds, self._now)
        for each in before:
            np.maximum(free, each.finish, out=free)
        for each in self._active:
            if each.place > transfer.place:
                each.finish = np.where(
                    each.finish > self._now, np.maximum(each.finish, free) + seconds, each.finish
                )
        transfer.finish = free + seconds
        self._active.append(transfer)
        self._known[flow] = transfer
        self._note_busy()
        self._note_starved()

    def start_of(self, flow: Flow) -> float:
        """Returns when the last rank asked for an exchange."""
        return self._known[flow].start

    def done(self, flow: Flow) -> FloatArray:
        """Returns when each rank has all of an exchange, unless more is added; shape ``[W]``.

        Every rank sends something to every other, and serves all of them in turn, so all wait for
        the last sender; then for their own link.
        """
        transfer = self._known[flow]
        finish = np.where(transfer.takes_part, transfer.finish, transfer.start)
        own: FloatArray = finish[_IN].max(axis=0)
        last_sender = float(finish[_OUT].max())
        return np.maximum(own, last_sender) + self._cluster.latency_seconds

    def end_of_compute(self, start: FloatArray, work: FloatArray, slowdown: float) -> FloatArray:
        """Returns when ranks have computed something, unless more exchanges are added.

        Args:
            start: When each begins; shape ``[W]``.
            work: How long each computes at full speed.
            slowdown: By what part it takes longer while the rank's links are busy.
        """
        if slowdown == 0:
            return start + work
        now: FloatArray = start.copy()
        left: FloatArray = work.copy()
        ends = [begin for begin, _ in self._busy[1:]] + [np.inf]
        for (_, busy_until), end in zip(self._busy, ends, strict=True):
            slow = np.minimum(
                left, np.maximum(np.minimum(busy_until, end) - now, 0) / (1 + slowdown)
            )
            now += slow * (1 + slowdown)
            left -= slow
            fast = np.minimum(left, np.maximum(end - now, 0))
            now += fast
            left -= fast
        return now

    def forget(self, flows: Iterable[Flow], before: float) -> None:
        """Lets go of exchanges nobody waits for, and of what was busy before some time."""
        for flow in flows:
            self._known.pop(flow, None)
        while len(self._busy) > 1 and self._busy[1][0] <= before:
            del self._busy[0]

    def _note_busy(self) -> None:
        until = np.full(self._cluster.ranks, -np.inf)
        for each in self._active:
            shown = np.where(each.takes_part, each.finish, -np.inf)
            np.maximum(until, shown.max(axis=0), out=until)
        if self._busy[-1][0] == self._now:
            self._busy.pop()
        self._busy.append((self._now, until))

    def _note_starved(self) -> None:
        """Notes whom more urgent exchanges keep from being served for too long from now on."""
        urgent = np.full_like(self._active[0].finish, -np.inf)
        level, of_level = -1, urgent
        for each in sorted(self._active, key=lambda each: each.place):
            if each.place[0] != level:
                urgent = np.maximum(urgent, of_level)
                level, of_level = each.place[0], each.finish
            waits = each.takes_part & (each.finish > self._now)
            if not each.starved and bool((waits & (urgent - self._now >= AGING_SECONDS)).any()):
                each.starved = True
                self.starved += 1
            of_level = np.maximum(of_level, each.finish)
