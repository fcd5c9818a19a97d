"""A training run, as its directory tells of it; all times in ns since the run's zero."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from freescale_pg.observe.intervals import Intervals
from freescale_pg.observe.report import BubbleReport, RankTimes, StepTime

# From the most urgent down.
PRIORITIES = ("URGENT", "HIGH", "NORMAL", "LOW", "BACKGROUND")


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step, and when it was.

    Attributes:
        time: Where its time went. A batch that was fetched before the step counts within it.
        begin: Of the step itself.
        end: Likewise.
        thread: That took it.
    """

    time: StepTime
    begin: int
    end: int
    thread: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a collective, from the call to its end.

    Attributes:
        op: Name of the operation.
        priority: Name of the priority.
        begin: When it was called.
        ready: When the last rank had come; ``begin`` where nobody was waited for.
        end: When it was over.
        failed: Whether it raised.
    """

    op: str
    priority: str
    begin: int
    ready: int
    end: int
    failed: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """A thread's wait for a call; times as of a :class:`Call`."""

    thread: int
    priority: str
    begin: int
    ready: int
    end: int


@dataclass(frozen=True, slots=True)
class Join:
    """A thread's wait for the end of another one: it waits for what that one waits for."""

    thread: int
    joined: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message to or from another rank.

    Attributes:
        peer: The other rank.
        is_incoming: Whether it came from there.
        priority: Name of the priority.
        bytes: Of its payload.
        begin: When it was granted or matched.
        end: When its last byte was there.
    """

    peer: int
    is_incoming: bool
    priority: str
    bytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The last events of a rank.

    Attributes:
        calls: Of collectives.
        waits: Of threads for calls.
        joins: Of threads for threads.
        messages: To and from other ranks.
        dropped: Events before these, of which there was no room.
    """

    calls: tuple[Call, ...]
    waits: tuple[Wait, ...]
    joins: tuple[Join, ...]
    messages: tuple[Message, ...]
    dropped: int

    @property
    def begin(self) -> int:
        """When the first event that is kept was over: what came later is all here."""
        kinds = (self.calls, self.waits, self.joins, self.messages)
        ends = [each.end for events in kinds for each in events]
        return min(ends, default=0) if self.dropped else 0


@dataclass(frozen=True, slots=True)
class Operation:
    """What ``fs.stats()`` said of an operation at the end; see :class:`freescale_pg.OpStats`."""

    op: str
    priority: str
    calls: int
    bytes_sent: int
    bytes_received: int
    blocked_seconds: float
    in_flight_seconds: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """What ``fs.stats()`` said of another rank; see :class:`freescale_pg.LinkStats`."""

    peer: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class Link:
    """How a rank reaches another one."""

    peer: int
    transport: str
    reason: str


@dataclass(frozen=True, slots=True)
class Imbalance:
    """Heaviest over mean load of batches; see :class:`freescale_pg.balance.EpochBalance`.

    Attributes:
        steps: Batches.
        before: As the samples came, or dealt out in turn.
        after: As balanced.
        floor: The least possible.
        batches: The three of each of the last batches; float64, shape ``[batches, 3]``.
    """

    steps: int
    before: float
    after: float
    floor: float
    batches: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class EpochImbalance(Imbalance):
    """The same of an epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class OnlineBalance:
    """What an online balancer did; see :class:`freescale_pg.balance.OnlineStats`.

    Attributes:
        imbalance: Heaviest over mean load of all its batches, by the costs that it was told.
        skipped: Batches of which no sample moved.
        samples: That came to all ranks.
        samples_moved: Of those.
        bytes_moved: Of what moved.
    """

    imbalance: Imbalance
    skipped: int
    samples: int
    samples_moved: int
    bytes_moved: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What the sampler dealt out.

    Attributes:
        samples_per_rank: In each step.
        lengths: Quantiles of the samples' lengths, in tokens; float64, ascending.
        token_cost: Of a token, in the unit of the sampler's cost model.
        pair_cost: Of a pair of tokens, in the same unit.
    """

    samples_per_rank: int
    lengths: npt.NDArray[np.float64]
    token_cost: float
    pair_cost: float


@dataclass(frozen=True)
class RankRun:
    """One rank's part of a run.

    Attributes:
        rank: Of all ranks.
        host: Name of its host.
        process: Its number there.
        state: "finished", "failed", or "running" where nothing was written since.
        error: What ended it, if it failed.
        steps: The last ones, in order.
        loads: When it was in ``next()`` of the loader.
        operations: Totals.
        links: To the other ranks.
        traffic: Totals by the other rank; empty where a recorder did not write them.
        trace: None where there is none.
    """

    rank: int
    host: str
    process: int
    state: str
    error: str | None
    steps: tuple[TimedStep, ...]
    loads: Intervals
    operations: tuple[Operation, ...]
    links: tuple[Link, ...]
    traffic: tuple[Traffic, ...]
    trace: Trace | None


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        directory: Where it was read.
        size: How many ranks it had.
        began_unix: When; s since 1970.
        facts: What else is known of it, by name.
        ranks: Those whose files could be read, by rank.
        balance: By epoch; the last one with its batches.
        online: None where no online balancer was recorded, or it had no batch.
        workload: None where no sampler was recorded, or one whose costs are not known by a formula.
        missing: What is not there and why, a sentence each.
    """

    directory: Path
    size: int
    began_unix: float
    facts: Mapping[str, Any]
    ranks: Mapping[int, RankRun]
    balance: tuple[EpochImbalance, ...]
    online: OnlineBalance | None
    workload: Workload | None
    missing: tuple[str, ...]

    @property
    def bubbles(self) -> BubbleReport:
        """Where the time of all steps went."""
        return BubbleReport(
            tuple(
                RankTimes(rank, tuple(step.time for step in each.steps))
                for rank, each in self.ranks.items()
            )
        )

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts, each once."""
        return list(dict.fromkeys(each.host for each in self.ranks.values()))
