"""What a step waits for its embedding exchange, plain and overlapped, on links of a given rate.

    python benchmarks/overlap.py                           # 4 ranks, 10 and 30 % shared: 4 minutes
    python benchmarks/overlap.py --ranks 8 --shared 0,0.1,0.3,0.5,1
    python benchmarks/overlap.py --plot timeline.svg       # needs matplotlib

Every rank looks up 8192 different ids of 128 float32 in each step, in a table dealt to all ranks,
and sends their gradients back. Computing (30 % forward, 60 % backward, 10 % optimizer) is a sleep:
it takes no CPU, as it would not with a GPU, and lasts ``--compute`` times as long as the link needs
for the ids, vectors and gradients of a step. *Shared* is the part of a batch's rows that the batch
before had as well.

The link is emulated: freescale by ``FREESCALE_EMULATED_LINK_RATE``, gloo on network namespaces with
the kernel's token bucket (root and iproute2; else it is left out). Rates are low so that what two
cores need for copying is small beside them; what matters is the ratio of computing to exchange.

*Exposed* is the time for which a step waits for messages, of the rank that waits longest, median
over the steps. *Rest* is what is left beside it and the sleeps: processor time of look-ups and
copies, which a device would do beside its other work. The freescale schedules take turns in the
same processes, a few steps each, whose first two are not counted. *blocking*: ids, vectors and
gradients when they are needed. *FIFO*: the overlapped schedule with one priority for all messages.
*prioritised*: with the priorities of freescale_pg.embedding.overlap. *Urgent ms* is how long the
exchange of the shared rows' vectors takes from the moment the last rank asks, and *idle ms* what it
takes on links with nothing else to do; the difference should be no more than a chunk that is on the
wire (*chunk ms*).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

import freescale_pg as fs
from bench.arguments import numbers
from bench.launch import LaunchError, run_ranks
from bench.ranks import Ranks, joined, started_as_rank
from bench.shaped import ShapingUnavailableError, run_shaped
from bench.table import markdown
from bench.timed_training import FirstInFirstOut, Shape, Training, equal_work
from targets import EXPOSED_LESS_BY

_CHUNK_BYTES = 128 << 10
_WARM_UP, _MEASURED = 2, 4
_LIMIT = 300.0
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
    "targets",
]


def shape_of(options: argparse.Namespace, shared: float) -> Shape:
    """Returns a step that computes as long as asked for."""
    per_id = 4 + 2 * 4 * options.dim
    away = options.ids * (options.ranks - 1) / options.ranks
    exchange_seconds = away * per_id / options.rate
    return Shape(options.ids, options.dim, shared, options.compute * exchange_seconds)


def measure(options: argparse.Namespace, shared: float, ranks: Ranks) -> list[dict[str, Any]]:
    """Returns what happened in each schedule, on rank 0; collective."""
    shape = shape_of(options, shared)
    group = dist.new_group(backend=options.backend)
    assert isinstance(group, dist.ProcessGroup)
    plain = equal_work(shape, group)
    trainings: list[Training] = [Training("blocking", plain, group, overlap=False)]
    if options.backend == "freescale":
        for kind, name in ((FirstInFirstOut, "FIFO"), (Training, "prioritised")):
            trainings.append(kind(name, equal_work(shape, group), group, overlap=True))
    idle = idle_seconds(shape, group) if options.backend == "freescale" else None
    for _ in range(options.rounds):
        for training in trainings:
            dist.barrier()
            training.run(_WARM_UP, _MEASURED)
    for training in trainings:
        training.close()
    own = [_record(training, options.backend, shape, idle) for training in trainings]
    everyones: list[Any] = [None] * ranks.world_size
    dist.all_gather_object(everyones, own)
    return [
        {"schedule": training.name, "shared": shared, "ranks": [each[i] for each in everyones]}
        for i, training in enumerate(trainings)
    ]


def _record(training: Training, backend: str, shape: Shape, idle: float | None) -> dict[str, Any]:
    calls = fs.debug.dump()["records"] if backend == "freescale" else []
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
        fs.all_to_all_single(room, piece, group=group, priority=fs.Priority.URGENT)
        last = fs.debug.dump()["records"][-1]
        times.append((last["end_ns"] - last["begin_ns"]) / 1e9)
    return median(times)


# --- The launcher's side ----------------------------------------------------------------------


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


def step_times(result: dict[str, Any]) -> list[StepTime]:
    """Returns each step of the rank that waits longest in it."""
    return [
        max(
            (_step_time(rank, step) for rank, step in zip(result["ranks"], steps, strict=True)),
            key=lambda time: time.exposed,
        )
        for steps in zip(*(rank["steps"] for rank in result["ranks"]), strict=True)
    ]


def _step_time(rank: dict[str, Any], step: dict[str, float]) -> StepTime:
    def within(intervals: list[dict[str, float]]) -> float:
        return sum(
            each["end"] - each["begin"]
            for each in intervals
            if step["begin"] <= each["begin"] <= step["end"]
        )

    return StepTime(step["end"] - step["begin"], within(rank["computing"]), within(rank["waiting"]))


def urgent_seconds(result: dict[str, Any]) -> float | None:
    """Returns how long the shared rows' vectors take, once the last rank has asked for them."""
    of_ranks = [[call for call in rank["calls"] if call[2] == "URGENT"] for rank in result["ranks"]]
    if not of_ranks[0]:
        return None
    latencies: list[float] = [
        max(call[1] for call in calls) - max(call[0] for call in calls)
        for calls in zip(*of_ranks, strict=True)
    ]
    return median(latencies)


def rows_of(results: Sequence[dict[str, Any]], rate: float) -> list[list[str]]:
    """Returns the table's lines; *less by* is against freescale's blocking schedule."""
    lines = []
    blocking: dict[float, float] = {}
    for result in results:
        times = step_times(result)
        exposed = median(time.exposed for time in times)
        backend = result["ranks"][0]["backend"]
        shared = result["shared"]
        if backend == "freescale" and result["schedule"] == "blocking":
            blocking[shared] = exposed
        less = 1 - exposed / blocking[shared] if shared in blocking else None
        overlapped = result["schedule"] == "prioritised"
        urgent = urgent_seconds(result) if overlapped else None
        target = EXPOSED_LESS_BY.get(shared) if overlapped else None
        lines.append(
            [
                f"{backend}, {result['schedule']}",
                str(len(result["ranks"])),
                f"{100 * shared:g}",
                f"{1e3 * median(time.whole for time in times):.1f}",
                f"{1e3 * median(time.computing for time in times):.1f}",
                f"{1e3 * exposed:.1f}",
                f"{1e3 * median(time.rest for time in times):.1f}",
                "–" if less is None else f"{100 * less:.0f} %",
                "–" if urgent is None else f"{1e3 * urgent:.1f}",
                "–"
                if urgent is None
                else f"{1e3 * median(r['idle'] for r in result['ranks']):.1f}",
                "–" if urgent is None else f"{1e3 * _CHUNK_BYTES / rate:.1f}",
                "–"
                if target is None or less is None
                else f"{'met' if less >= target else 'MISSED'} less by ≥ {target:g}",
            ]
        )
    return lines


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs all schedules for each shared part; freescale's first, which others are compared to."""
    results = []
    with tempfile.TemporaryDirectory(prefix="freescale-bench-") as directory:
        for backend in options.backends:
            path = Path(directory) / backend
            arguments = [*sys.argv[1:], "--backend", backend, "--out", str(path)]
            try:
                _launch(options, backend, arguments)
            except ShapingUnavailableError as error:
                print(f"{backend} is left out: {error}", file=sys.stderr)
                continue
            results += json.loads(path.read_text())
    order = list(options.shared)
    return sorted(results, key=lambda result: order.index(result["shared"]))


def _launch(options: argparse.Namespace, backend: str, arguments: list[str]) -> None:
    if backend == "freescale":
        os.environ["FREESCALE_EMULATED_LINK_RATE"] = str(int(options.rate))
        run_ranks(__file__, arguments, options.ranks)
    else:
        run_shaped(__file__, arguments, options.ranks, int(options.rate), _LIMIT)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ranks", type=int, default=4)
    add("--shared", type=numbers, default=[0.1, 0.3], help="parts of a batch, comma-separated")
    add("--rate", type=float, default=10e6, help="bytes per second that each rank sends")
    add("--ids", type=int, default=8192, help="per rank and step")
    add("--dim", type=int, default=128)
    add("--compute", type=float, default=1.2, help="as a multiple of the exchange's time")
    add("--rounds", type=int, default=4, help=f"of {_MEASURED} measured steps for each schedule")
    add("--backends", nargs="+", choices=["freescale", "gloo"], default=["freescale", "gloo"])
    add("--plot", type=Path, help="SVG or PNG of one step of each schedule")
    add("--backend", help=argparse.SUPPRESS)
    add("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Runs as one of the ranks when a launcher started this process, else as the launcher."""
    options = parse_arguments()
    if started_as_rank():
        with joined() as ranks:
            results = [each for part in options.shared for each in measure(options, part, ranks)]
            if ranks.rank == 0:
                options.out.write_text(json.dumps(results))
        return
    try:
        results = run_all(options)
    except LaunchError as error:
        raise SystemExit(str(error)) from None
    print(markdown(_HEADER, rows_of(results, options.rate)))
    if options.plot is not None:
        # Not at the top: only this needs matplotlib.
        from bench.timeline import draw

        draw(results, options.plot)


if __name__ == "__main__":
    main()
