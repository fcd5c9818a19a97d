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

from freescale_pg.bench.barrier import share_memory
from freescale_pg.bench.cells import ELEMENT_BYTES
from freescale_pg.bench.devices import CPU, own_device
from freescale_pg.bench.exchange import Exchange, group_of_priority
from freescale_pg.bench.launch import Program, run_ranks
from freescale_pg.bench.mode import Mode, Record, check_ranks, measured_by, say
from freescale_pg.bench.ranks import Ranks, agreed
from freescale_pg.bench.results import CANDIDATE
from freescale_pg.bench.roster import check_backends, choose_backends
from freescale_pg.bench.shaped import ShapingUnavailableError, run_shaped
from freescale_pg.bench.table import markdown
from freescale_pg.bench.timed_training import FirstInFirstOut, Shape, Training, equal_work
from freescale_pg.debug import dump
from freescale_pg.observe.intervals import Intervals, clip, subtract, total, union

_RATE_VARIABLE = "FREESCALE_EMULATED_LINK_RATE"
# By type of device.
_CHUNK_BYTES = {"cpu": 128 << 10, "cuda": 4 << 20}
_DEFAULT_RATE = 10_000_000
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
        backends: Of torch; None: freescale, and gloo where the ranks can be given links, or NCCL
            on CUDA devices.
        device: Type of the tensors' device, "cpu" or "cuda".
        shared: Parts of a batch's rows that the batch before had as well.
        rate: Bytes per second that each rank sends; None: 10 MB/s. The links of CUDA tensors are
            taken as they are.
        ids: Looked up by each rank in each step.
        dim: Length of a row; float32.
        compute: Of a step, as a multiple of the time of its exchange.
        rounds: Of 4 measured steps for each schedule.
        plot: SVG or PNG file for a picture of one step of each schedule.
    """

    name: ClassVar[str] = "overlap"

    ranks: int | None
    backends: tuple[str, ...] | None
    device: str
    shared: tuple[float, ...]
    rate: int | None
    ids: int
    dim: int
    compute: float
    rounds: int
    plot: Path | None = None

    def check(self, world_size: int | None) -> None:
        """Refuses absent devices, unknown backends, and those whose links cannot be shaped."""
        check_backends(self.backends, self.device, self.ranks or _DEFAULT_RANKS, world_size)
        if self._is_on_cuda and self.rate is not None:
            raise ValueError(
                f"--rate {self.rate}: links are emulated for CPU tensors, not with --device cuda"
            )
        if self.plot is not None and importlib.util.find_spec("matplotlib") is None:
            raise ValueError("--plot needs matplotlib: pip install matplotlib")
        check_ranks(None if self.ranks is None else [self.ranks], world_size)
        for backend in self.backends or ():
            if world_size is not None and backend != CANDIDATE and not self._is_on_cuda:
                raise ValueError(
                    f"--backends {backend}: in a job only {CANDIDATE} has links of a given rate"
                )

    def collect(self) -> list[Record]:
        """Starts one run for each backend; freescale's first, which others are compared to."""
        names = choose_backends(self.backends, self.device, self.ranks or _DEFAULT_RANKS)
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
        if backend == CANDIDATE or self._is_on_cuda:
            run_ranks(program, arguments, ranks)
        else:
            run_shaped(program, arguments, ranks, self._emulated_rate, None)

    def measure(self, ranks: Ranks) -> list[Record]:
        """Runs the schedules of one backend for each shared part."""
        (backend,) = self.backends or (CANDIDATE,)
        if backend == CANDIDATE and not self._is_on_cuda:
            os.environ[_RATE_VARIABLE] = str(self._emulated_rate)
        if not share_memory(ranks):
            raise ValueError(
                "overlap needs one host: links between hosts are not emulated, and their clocks"
                " differ"
            )
        device = own_device(self.device, ranks)
        rate: float = self._emulated_rate
        if self._is_on_cuda:
            rate = self._measured_rate(backend, ranks, device)
        return [
            {**record, "rate": rate, "device": self.device}
            for part in self.shared
            for record in measure(
                self._shape(part, rate, ranks), backend, self.rounds, ranks, device
            )
        ]

    @property
    def _is_on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def _emulated_rate(self) -> int:
        return self.rate or _DEFAULT_RATE

    def _measured_rate(self, backend: str, ranks: Ranks, device: torch.device) -> float:
        """Returns how many bytes per second a rank sends in an exchange of a batch's vectors.

        Those of the others; of a single rank: its own.
        """
        group = group_of_priority(backend, "URGENT")
        size = self.ids * self.dim * ELEMENT_BYTES
        exchange = Exchange(size, ranks, group, device)
        return agreed((exchange.bytes_to_others or size) / idle_seconds(exchange))

    def _shape(self, shared: float, rate: float, ranks: Ranks) -> Shape:
        """Returns a step that computes as long as asked for."""
        per_id = 4 + 2 * ELEMENT_BYTES * self.dim
        away = self.ids * (ranks.world_size - 1) / ranks.world_size
        return Shape(self.ids, self.dim, shared, self.compute * away * per_id / rate)

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


def measure(
    shape: Shape, backend: str, rounds: int, ranks: Ranks, device: torch.device = CPU
) -> list[Record]:
    """Returns what happened in each schedule, the same on every rank; collective."""
    group = dist.new_group(backend=backend)
    assert isinstance(group, dist.ProcessGroup)

    def training(kind: type[Training], name: str, *, overlap: bool) -> Training:
        work = equal_work(shape, group, device)
        return kind(name, work, group, overlap=overlap, device=device)

    trainings = [training(Training, "blocking", overlap=False)]
    idle = None
    if backend == CANDIDATE:
        trainings.append(training(FirstInFirstOut, "FIFO", overlap=True))
        trainings.append(training(Training, "prioritised", overlap=True))
        # As large as the shared rows' vectors.
        size = max(1, round(shape.shared * shape.ids)) * shape.dim * ELEMENT_BYTES
        urgent = group_of_priority(backend, "URGENT")
        idle = idle_seconds(Exchange(size, ranks, urgent, device))
    for _ in range(rounds):
        for each in trainings:
            dist.barrier()
            each.run(_WARM_UP, MEASURED_STEPS)
    for each in trainings:
        each.close()
    own = [_record(each, backend, idle) for each in trainings]
    everyones: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(everyones, own)
    return [
        {
            "schedule": each.name,
            "shared": shape.shared,
            "ranks": [of_rank[number] for of_rank in everyones],
        }
        for number, each in enumerate(trainings)
    ]


def _record(training: Training, backend: str, idle: float | None) -> Record:
    calls = dump()["records"] if backend == CANDIDATE else []
    spans = [(step.begin * 1e9, step.end * 1e9) for step in training.called]
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


def idle_seconds(exchange: Exchange) -> float:
    """Returns how long an exchange takes on this rank, on idle links; collective."""
    times: list[float] = []
    for _ in range(5):
        dist.barrier()
        begin, end = exchange.run()
        times.append(end - begin)
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
    def within(spans: list[dict[str, float]]) -> Intervals:
        return clip(union(map(nanoseconds, spans)), *nanoseconds(step))

    # Several threads enqueue on a stream, so what they wait for may overlap, and lie in what it
    # computes.
    waiting = within(rank["waiting"])
    computing = subtract(within(rank["computing"]), waiting)
    return StepTime(step["end"] - step["begin"], total(computing) / 1e9, total(waiting) / 1e9)


def nanoseconds(span: dict[str, float]) -> tuple[int, int]:
    """Returns a begin and an end, given in seconds."""
    return round(1e9 * span["begin"]), round(1e9 * span["end"])


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
        chunk = _CHUNK_BYTES[record["device"]]
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
                "chunk_ms": None if urgent is None else 1e3 * chunk / record["rate"],
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
