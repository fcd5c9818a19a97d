"""``freescale bench priority``: an urgent exchange while a bulk one is in flight on another group.

``definitions`` says what the numbers mean.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from freescale_pg.bench.attempt import WrongResultError
from freescale_pg.bench.barrier import Barrier, GroupBarrier, make_barrier
from freescale_pg.bench.devices import CPU, own_device
from freescale_pg.bench.exchange import Exchange, InFlight, group_of_priority
from freescale_pg.bench.launch import run_ranks
from freescale_pg.bench.memory import check_memory
from freescale_pg.bench.mode import Mode, Record, check_ranks, measured_by
from freescale_pg.bench.ranks import Ranks, agreed
from freescale_pg.bench.roster import check_backends, choose_backends
from freescale_pg.bench.table import markdown, microseconds_text, ratio_text, size_text

_SEED = 20
_DEFAULT_RANKS = 2
# The last tick comes this far into the bulk exchange, so that its urgent call still meets it.
_TICKED_SHARE = 0.8
_CALIBRATION_RUNS = 3
_HEADER = ["backend", "urgent idle µs", "urgent loaded µs", "ratio", "bulk alone ms"]
_HEADER += ["bulk loaded ms", "bulk loss", "calls beside/missed"]


@dataclass(frozen=True)
class PriorityMode(Mode):
    """What is measured.

    Attributes:
        ranks: World size; None: that of the job, else 2.
        backends: Of torch; None: freescale and gloo, or NCCL beside it on CUDA devices.
        device: Type of the tensors' device, "cpu" or "cuda".
        urgent: Bytes of a rank's input in the urgent exchange.
        bulk: The same in the bulk exchange.
        rate: Urgent calls a second.
        trials: Of each kind.
    """

    name: ClassVar[str] = "priority"

    ranks: int | None
    backends: tuple[str, ...] | None
    device: str
    urgent: int
    bulk: int
    rate: float
    trials: int

    def check(self, world_size: int | None) -> None:
        """Refuses unknown backends, absent devices, and another world size than the job's."""
        check_backends(self.backends, self.device, self.ranks or _DEFAULT_RANKS, world_size)
        check_ranks(None if self.ranks is None else [self.ranks], world_size)

    def collect(self) -> list[Record]:
        """Starts one run."""
        return measured_by(self, partial(run_ranks, ranks=self.ranks or _DEFAULT_RANKS))

    def measure(self, ranks: Ranks) -> list[Record]:
        """Runs all trials of all backends."""
        interval = 1.0 / self.rate
        # Yielding: a backend's own threads need the cores to carry the bulk bytes meanwhile.
        schedule = Schedule(make_barrier(ranks, yields=True), interval)
        speaks = ranks.rank == 0
        names = choose_backends(self.backends, self.device, ranks.local_size, speaks=speaks)
        device = own_device(self.device, ranks)
        check_memory(2 * len(names) * (self.urgent + self.bulk), ranks, device)
        contests = [make_contest(name, self.urgent, self.bulk, ranks, device) for name in names]
        for contest in contests:
            calibrate(contest, interval)
        kinds = (idle_trial, loaded_trial, bulk_trial)
        trials = [(kind, contest) for kind in kinds for contest in contests]
        shuffle = random.Random(_SEED).shuffle
        for _ in range(self.trials):
            shuffle(trials)
            for trial, contest in trials:
                trial(contest, schedule)
        return [contest.record(ranks.world_size) for contest in contests]

    def table(self, records: Sequence[Record]) -> str:
        """A line for each backend."""
        title = (
            f"urgent {size_text(self.urgent)} at {self.rate:g}/s beside bulk "
            f"{size_text(self.bulk)}, {records[0]['ranks']} ranks; medians"
        )
        return f"{title}\n\n{markdown(_HEADER, [_row(record) for record in records])}"

    def lines(self, records: Sequence[Record]) -> list[Record]:
        """A line for each backend."""
        return list(records)


@dataclass
class Contest:
    """One backend's two exchanges and what was measured of them.

    Attributes:
        name: the backend.
        urgent: small exchange on the urgent group.
        bulk: large exchange on the background group.
        ticks: urgent calls that fit beside one bulk exchange.
        idle, loaded: urgent latencies in seconds.
        bulk_alone, bulk_loaded: bulk times in seconds.
        missed: urgent calls that the bulk exchange did not last for.
    """

    name: str
    urgent: Exchange
    bulk: Exchange
    ticks: int = 0
    idle: list[float] = field(default_factory=list)
    loaded: list[float] = field(default_factory=list)
    bulk_alone: list[float] = field(default_factory=list)
    bulk_loaded: list[float] = field(default_factory=list)
    missed: int = 0

    def record(self, world_size: int) -> Record:
        """Medians; None where nothing was measured."""
        idle, loaded = _median(self.idle), _median(self.loaded)
        alone, beside = _median(self.bulk_alone), _median(self.bulk_loaded)
        return {
            "backend": self.name,
            "ranks": world_size,
            "urgent_idle_us": _scaled(idle, 1e6),
            "urgent_loaded_us": _scaled(loaded, 1e6),
            "ratio": loaded / idle if loaded and idle else None,
            "bulk_alone_ms": _scaled(alone, 1e3),
            "bulk_loaded_ms": _scaled(beside, 1e3),
            "bulk_loss": beside / alone - 1 if beside and alone else None,
            "calls_beside": len(self.loaded),
            "calls_missed": self.missed,
        }


def make_contest(
    name: str, urgent: int, bulk: int, ranks: Ranks, device: torch.device = CPU
) -> Contest:
    """Builds the groups and buffers of one backend. A collective call.

    Args:
        name: The backend.
        urgent: Bytes of a rank's input in the urgent exchange.
        bulk: The same in the bulk exchange.
        ranks: The run.
        device: Of the tensors.
    """
    return Contest(
        name,
        Exchange(urgent, ranks, group_of_priority(name, "URGENT"), device),
        Exchange(bulk, ranks, group_of_priority(name, "BACKGROUND"), device),
    )


class Schedule:
    """The ticks of one trial and what this rank notes at each."""

    def __init__(self, barrier: Barrier, interval: float) -> None:
        self._barrier = barrier
        self.has_one_clock = not isinstance(barrier, GroupBarrier)
        self._interval = interval

    def run(self, ticks: int, urgent: Exchange | None, bulk: InFlight | None) -> torch.Tensor:
        """Goes through the ticks; makes the urgent call at each if there is one.

        Returns:
            float64, shape ``(ticks, 3)``: when the call began and ended, as ``Exchange.run`` says
            (0 where there is none), and 1 if the bulk exchange was over by the end.
        """
        notes = torch.zeros(ticks, 3, dtype=torch.float64)
        first = time.perf_counter()
        for tick in range(ticks):
            time.sleep(max(0.0, first + (tick + 1) * self._interval - time.perf_counter()))
            self._barrier.wait()
            start, end = (0.0, 0.0) if urgent is None else urgent.run()
            over = bulk is not None and bulk.is_over
            notes[tick] = torch.tensor([start, end, float(over)], dtype=torch.float64)
        return notes


def latencies(notes: torch.Tensor, has_one_clock: bool) -> tuple[list[float], int]:
    """Urgent latencies over all ranks. A collective call.

    Args:
        notes: this rank's, as ``Schedule.run`` returns them.
        has_one_clock: the ranks' times can be compared; else the longest time inside counts.

    Returns:
        Seconds from the last rank's start to the last rank's end, for each tick at which the bulk
        exchange outlasted the call on every rank; and how many ticks were left out.
    """
    latest = notes.clone()
    if not has_one_clock:
        latest[:, 1] -= latest[:, 0]
        latest[:, 0] = 0
    dist.all_reduce(latest, dist.ReduceOp.MAX)
    lasted = latest[:, 2] == 0
    spans = (latest[:, 1] - latest[:, 0])[lasted]
    return spans.tolist(), len(notes) - len(spans)


def idle_trial(contest: Contest, schedule: Schedule) -> None:
    """Urgent calls with nothing else in flight."""
    spans, _ = latencies(schedule.run(contest.ticks, contest.urgent, None), schedule.has_one_clock)
    contest.idle += spans


def loaded_trial(contest: Contest, schedule: Schedule) -> None:
    """Urgent calls beside a bulk exchange."""
    seconds, notes = _bulk_exchange(contest, schedule, contest.urgent)
    spans, missed = latencies(notes, schedule.has_one_clock)
    contest.bulk_loaded.append(seconds)
    contest.loaded += spans
    contest.missed += missed


def bulk_trial(contest: Contest, schedule: Schedule) -> None:
    """A bulk exchange with no urgent calls."""
    seconds, _ = _bulk_exchange(contest, schedule, None)
    contest.bulk_alone.append(seconds)


def _bulk_exchange(
    contest: Contest, schedule: Schedule, urgent: Exchange | None
) -> tuple[float, torch.Tensor]:
    dist.barrier()
    bulk = contest.bulk.start()
    notes = schedule.run(contest.ticks, urgent, bulk)
    seconds = torch.tensor([bulk.wait()], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds.item()), notes


def calibrate(contest: Contest, interval: float) -> None:
    """Warms both exchanges up, checks them, and sets how many ticks fit beside a bulk one.

    Raises:
        WrongResultError: An exchange delivered something else than was sent.
    """
    contest.urgent.run()
    lasts = agreed(min(contest.bulk.start().wait() for _ in range(_CALIBRATION_RUNS)))
    for kind, exchange in (("urgent", contest.urgent), ("bulk", contest.bulk)):
        if not exchange.is_correct():
            raise WrongResultError(f"{contest.name}: wrong result of the {kind} exchange")
    contest.ticks = max(1, int(_TICKED_SHARE * lasts / interval))


def _median(samples: Sequence[float]) -> float | None:
    return statistics.median(samples) if samples else None


def _scaled(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor


def _row(record: Record) -> list[str]:
    return [
        record["backend"],
        microseconds_text(record["urgent_idle_us"]),
        microseconds_text(record["urgent_loaded_us"]),
        ratio_text(record["ratio"]),
        _text(record["bulk_alone_ms"], ".1f"),
        _text(record["bulk_loaded_ms"], ".1f"),
        _text(record["bulk_loss"], "+.1%"),
        f"{record['calls_beside']}/{record['calls_missed']}",
    ]


def _text(value: Any, form: str) -> str:
    return "–" if value is None else format(value, form)
