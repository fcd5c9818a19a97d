"""``freescale bench overlap``: what a step waits for its embedding exchange, plain and overlapped.

``definitions`` says what the numbers mean.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from freescale_pg._priority import Priority
from freescale_pg.bench.barrier import share_memory
from freescale_pg.bench.launch import Program, run_ranks
from freescale_pg.bench.mode import Mode, Record, check_ranks, measured_by, say
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CANDIDATE
from freescale_pg.bench.roster import TORCH_BACKENDS, Place, check_names, choose_among
from freescale_pg.bench.shaped import ShapingUnavailableError, run_shaped
from freescale_pg.bench.table import markdown
from freescale_pg.bench.timed_training import FirstInFirstOut, Shape, Training, equal_work
from freescale_pg.debug import dump
from freescale_pg.operators import all_to_all_single

_RATE_VARIABLE = "FREESCALE_EMULATED_LINK_RATE"
_CHUNK_BYTES = 128 << 10
_DEFAULT_RANKS = 4
_WARM_UP, MEASURED_STEPS = 2, 4
_HEADER = [
    "schedule",
    "ranks",
    "shared %",
    "step ms",
    "computing ms",
    "exposed ms",
    "rest ms",
    "less by",
    "urgent ms",
    "idle ms",
    "chunk ms",
]


@dataclass(frozen=True)
class OverlapMode(Mode):
    """What is measured.

    Attributes:
        ranks: World size; None: that of the job, else 4.
        backends: Of torch; None: freescale, and gloo where the ranks can be given links.
        shared: Parts of a batch's rows that the batch before had as well.
        rate: Bytes per second that each rank sends.
        ids: Looked up by each rank in each step.
        dim: Length of a row; float32.
        compute: Of a step, as a multiple of the time of its exchange.
        rounds: Of 4 measured steps for each schedule.
        plot: SVG or PNG file for a picture of one step of each schedule.
    """

    name: ClassVar[str] = "overlap"

    ranks: int | None
    backends: tuple[str, ...] | None
    shared: tuple[float, ...]
    rate: int
    ids: int
    dim: int
    compute: float
    rounds: int
    plot: Path | None = None

    def check(self, world_size: int | None) -> None:
        """Refuses unknown backends, and in a job those whose links cannot be shaped there."""
        check_names(self.backends)
        choose_among(self.backends, TORCH_BACKENDS, Place(), speaks=False)
        if self.plot is not None and importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: pip install matplotlib")
        check_ranks(None if self.ranks is None else [self.ranks], world_size)
        for backend in self.backends or ():
            if world_size is not None and backend != CANDIDATE:
                raise ValueError(
                    f"--backends {backend}: in a job only {CANDIDATE} has links of a given rate"
                )

    def collect(self) -> list[Record]:
        """Starts one run for each backend; freescale's first, which others are compared to."""
        names = choose_among(self.backends, TORCH_BACKENDS, Place())
        records = []
        for backend in sorted(names, key=lambda name: name != CANDIDATE):
            own = replace(self, backends=(backend,))
            try:
                records += measured_by(own, partial(self._start, backend))
            except ShapingUnavailableError as error:
                say(f"without {backend}: {error}")
        if not records:
            raise ValueError(f"no ranks of {', '.join(names)} could be given links")
        order = list(self.shared)
        return sorted(records, key=lambda record: order.index(record["shared"]))

    def _start(self, backend: str, program: Program, arguments: Sequence[str]) -> None:
        ranks = self.ranks or _DEFAULT_RANKS
        if backend == CANDIDATE:
            run_ranks(program, arguments, ranks)
        else:
            run_shaped(program, arguments, ranks, self.rate, None)

    def measure(self, ranks: Ranks) -> list[Record]:
        """Runs the schedules of one backend for each shared part."""
        (backend,) = self.backends or (CANDIDATE,)
        if backend == CANDIDATE:
            os.environ[_RATE_VARIABLE] = str(self.rate)
        if not share_memory(ranks):
            raise ValueError("overlap needs one host: links between hosts are not emulated")
        return [
            {**record, "rate": self.rate}
            for part in self.shared
            for record in measure(self._shape(part, ranks), backend, self.rounds, ranks)
        ]

    def _shape(self, shared: float, ranks: Ranks) -> Shape:
        """Returns a step that computes as long as asked for."""
        per_id = 4 + 2 * 4 * self.dim
        away = self.ids * (ranks.world_size - 1) / ranks.world_size
        exchange_seconds = away * per_id / self.rate
        return Shape(self.ids, self.dim, shared, self.compute * exchange_seconds)

    def table(self, records: Sequence[Record]) -> str:
        """A line for each schedule and shared part."""
        return markdown(_HEADER, [_row(line) for line in self.lines(records)])

    def lines(self, records: Sequence[Record]) -> list[Record]:
        """A line for each schedule and shared part."""
        return summaries(records)

    def results(self, records: Sequence[Record]) -> list[Record]:
        """The same: the times of every step would be megabytes."""
        return self.lines(records)

    def draw(self, records: Sequence[Record]) -> None:
        """Draws one step of each schedule."""
        if self.plot is not None:
            # Not at the top: only this needs matplotlib.
            from freescale_pg.bench.timeline import draw

            draw(records, self.plot)


def measure(shape: Shape, backend: str, rounds: int, ranks: Ranks) -> list[Record]:
    """Returns what happened in each schedule, the same on every rank; collective."""
    group = dist.new_group(backend=backend)
    assert isinstance(group, dist.ProcessGroup)
    trainings: list[Training] = [
        Training("blocking", equal_work(shape, group), group, overlap=False)
    ]
    if backend == CANDIDATE:
        for kind, name in ((FirstInFirstOut, "FIFO"), (Training, "prioritised")):
            trainings.append(kind(name, equal_work(shape, group), group, overlap=True))
    idle = idle_seconds(shape, group) if backend == CANDIDATE else None
    for _ in range(rounds):
        for training in trainings:
            dist.barrier()
            training.run(_WARM_UP, MEASURED_STEPS)
    for training in trainings:
        training.close()
    own = [_record(training, backend, idle) for training in trainings]
    everyones: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(everyones, own)
    return [
        {
            "schedule": training.name,
            "shared": shape.shared,
            "ranks": [each[number] for each in everyones],
        }
        for number, training in enumerate(trainings)
    ]


def _record(training: Training, backend: str, idle: float | None) -> Record:
    calls = dump()["records"] if backend == CANDIDATE else []
    spans = [(step.begin * 1e9, step.end * 1e9) for step in training.steps]
    return {
        "backend": backend,
        "steps": [asdict(step) for step in training.steps],
        "computing": [asdict(interval) for interval in training.compute.intervals],
        "waiting": [asdict(interval) for interval in training.notes.waits],
        "idle": idle,
        "calls": [
            [call["begin_ns"] / 1e9, call["end_ns"] / 1e9, call["priority"], call["bytes_in"]]
            for call in calls
            if call["op"] == "all_to_all_single"
            and any(begin <= call["begin_ns"] <= end for begin, end in spans)
        ],
    }


def idle_seconds(shape: Shape, group: dist.ProcessGroup) -> float:
    """Returns the time of an exchange as large as the shared rows' vectors on idle links."""
    rows = max(1, round(shape.shared * shape.ids / group.size()))
    piece = torch.zeros(rows * group.size(), shape.dim)
    room = torch.empty_like(piece)
    times: list[float] = []
    for _ in range(5):
        dist.barrier()
        all_to_all_single(room, piece, group=group, priority=Priority.URGENT)
        last = dump()["records"][-1]
        times.append((last["end_ns"] - last["begin_ns"]) / 1e9)
    return median(times)


# --- What is made of it -----------------------------------------------------------------------


@dataclass(frozen=True)
class StepTime:
    """Where the seconds of one step went, on one rank."""

    whole: float
    computing: float
    exposed: float

    @property
    def rest(self) -> float:
        """Neither computing nor waiting."""
        return self.whole - self.computing - self.exposed


def step_times(result: Record) -> list[StepTime]:
    """Returns each step of the rank that waits longest in it."""
    return [
        max(
            (_step_time(rank, step) for rank, step in zip(result["ranks"], steps, strict=True)),
            key=lambda time: time.exposed,
        )
        for steps in zip(*(rank["steps"] for rank in result["ranks"]), strict=True)
    ]


def _step_time(rank: Record, step: dict[str, float]) -> StepTime:
    def within(intervals: list[dict[str, float]]) -> float:
        return sum(
            each["end"] - each["begin"]
            for each in intervals
            if step["begin"] <= each["begin"] <= step["end"]
        )

    return StepTime(step["end"] - step["begin"], within(rank["computing"]), within(rank["waiting"]))


def urgent_seconds(result: Record) -> float | None:
    """Returns how long the shared rows' vectors take, once the last rank has asked for them."""
    of_ranks = [[call for call in rank["calls"] if call[2] == "URGENT"] for rank in result["ranks"]]
    if not of_ranks[0]:
        return None
    latencies: list[float] = [
        max(call[1] for call in calls) - max(call[0] for call in calls)
        for calls in zip(*of_ranks, strict=True)
    ]
    return median(latencies)


def summaries(records: Sequence[Record]) -> list[Record]:
    """Returns a line for each record; *less_by* is against freescale's blocking schedule."""
    blocking: dict[float, float] = {}
    lines = []
    for record in records:
        times = step_times(record)
        exposed = median(time.exposed for time in times)
        backend, shared = record["ranks"][0]["backend"], record["shared"]
        if backend == CANDIDATE and record["schedule"] == "blocking":
            blocking[shared] = exposed
        urgent = idle = None
        if record["schedule"] == "prioritised":
            urgent = urgent_seconds(record)
            idle = median(rank["idle"] for rank in record["ranks"])
        lines.append(
            {
                "backend": backend,
                "schedule": record["schedule"],
                "ranks": len(record["ranks"]),
                "shared": shared,
                "step_ms": 1e3 * median(time.whole for time in times),
                "computing_ms": 1e3 * median(time.computing for time in times),
                "exposed_ms": 1e3 * exposed,
                "rest_ms": 1e3 * median(time.rest for time in times),
                "less_by": 1 - exposed / blocking[shared] if shared in blocking else None,
                "urgent_ms": None if urgent is None else 1e3 * urgent,
                "idle_ms": None if idle is None else 1e3 * idle,
                "chunk_ms": None if urgent is None else 1e3 * _CHUNK_BYTES / record["rate"],
            }
        )
    return lines


def _row(line: Record) -> list[str]:
    less = line["less_by"]
    row = [
        f"{line['backend']}, {line['schedule']}",
        str(line["ranks"]),
        f"{100 * line['shared']:g}",
    ]
    row += [f"{line[name]:.1f}" for name in ("step_ms", "computing_ms", "exposed_ms", "rest_ms")]
    row.append("–" if less is None else f"{100 * less:.0f} %")
    optional = [line[name] for name in ("urgent_ms", "idle_ms", "chunk_ms")]
    return row + ["–" if value is None else f"{value:.1f}" for value in optional]
