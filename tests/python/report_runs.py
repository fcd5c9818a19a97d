"""A run made by hand, of which all numbers are known.

Of each step of 10 ms, rank 0 loads for 0.5, computes for 5.5, waits for rank 1 for 3 and for bytes
for 1; rank 1 computes for 9 and waits for bytes for 1: a bubble of 27.5 %.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from freescale_pg.observe.chrome import Slice, trace_events
from freescale_pg.observe.intervals import clip, intersect, total, union
from freescale_pg.observe.report import Blocked, StepTime, step_fields
from freescale_pg.observe.run_files import summary_path, trace_path, write_json
from freescale_pg.report.run import Run
from freescale_pg.report.timeline import lane_of, window_of

MS = 1_000_000
STEPS = 5
LARGE = 1_000_000  # bytes of a gradient
SMALL = 500  # bytes of what travels with its header
THREAD = 11


def write_run(directory: Path, ranks: int = 2, **changes: Any) -> Path:
    """Writes a run, of which ``changes`` are made in each rank's summary."""
    for rank in range(ranks):
        events = trace_events(rank, f"rank {rank}", slices(rank, ranks), lambda at: at)
        write_json(trace_path(directory, rank), {"traceEvents": events})
        write_json(summary_path(directory, rank), {**summary(rank, ranks), **changes})
    return directory


def summary(rank: int, ranks: int) -> dict[str, Any]:
    return {
        "kind": "freescale run",
        "format": 1,
        "run": "00112233",
        "rank": rank,
        "ranks": ranks,
        "host": "node<1>",
        "process": 100 + rank,
        "began_unix": 1_700_000_000.0,
        "torch": "2.13.0",
        "python": "3.11.7",
        "backend": "freescale",
        "state": "finished",
        "error": None,
        "steps": [
            {
                **step_fields(step_time(rank, number)),
                "begin_ns": number * 10 * MS,
                "end_ns": (number + 1) * 10 * MS,
                "thread": THREAD,
            }
            for number in range(STEPS)
        ],
        "loads": [[n * 10 * MS, n * 10 * MS + MS // 2] for n in range(STEPS)] if rank == 0 else [],
        "operations": [operation()],
        "links": [
            {"peer": peer, "transport": "self" if peer == rank else "shm", "reason": "both <share>"}
            for peer in range(ranks)
        ],
        "balance": balance(),
        "workload": {
            "samples_per_rank": 4,
            "lengths": [1.0, 2.0, 3.0, 10.0],
            "token_cost": 1.0,
            "pair_cost": 0.0,
        },
        "trace": {"file": f"rank{rank}.trace.json.gz", "events": 1, "dropped": 0},
    }


def step_time(rank: int, number: int) -> StepTime:
    waited = Blocked("all_reduce", "NORMAL", 3 * MS if rank == 0 else 0, MS)
    if rank == 0:
        return StepTime(number, 10 * MS, 11 * MS // 2, MS // 2, 0, (waited,))
    return StepTime(number, 10 * MS, 9 * MS, 0, 0, (waited,))


def operation() -> dict[str, Any]:
    return {
        "op": "all_reduce",
        "priority": "NORMAL",
        "calls": STEPS,
        "bytes_sent": STEPS * LARGE,
        "bytes_received": STEPS * LARGE,
        "blocked_seconds": 0.02,
        "in_flight_seconds": 0.02,
    }


def balance() -> list[dict[str, Any]]:
    epoch = {"epoch": 0, "steps": 2, "before": 1.5, "after": 1.2, "floor": 1.0, "batches": []}
    return [
        epoch,
        {**epoch, "epoch": 1, "after": 1.25, "batches": [[1.75, 1.375, 1.0], [1.25, 1.125, 1.0]]},
    ]


def slices(rank: int, ranks: int) -> Iterator[Slice]:
    for number in range(STEPS):
        begin = number * 10 * MS
        at = begin + (6 if rank == 0 else 9) * MS
        ready, end = begin + 9 * MS, begin + 10 * MS
        normal = {"priority": "NORMAL"}
        yield Slice(
            (0, 0, 0, "calls"), "call", f"all_reduce #{number}", at, end, ready,
            {**normal, "failed": False},
        )  # fmt: skip
        yield Slice(
            (1, 0, 0, "waits"), "wait", "all_reduce", at, end, ready, {**normal, "thread": THREAD}
        )
        urgent = {"priority": "URGENT"}
        yield Slice(
            (0, 1, 0, "calls"), "call", "all_to_all_single #1", begin + MS, begin + 2 * MS, 0,
            {**urgent, "failed": number == 0},
        )  # fmt: skip
        for peer in set(range(ranks)) - {rank}:
            for word in ("from", "to"):
                lane = (2 + peer, 0, 0, word)
                yield Slice(
                    lane, "message", "all_reduce", ready, end, 0,
                    {**normal, word: peer, "bytes": LARGE},
                )  # fmt: skip
                yield Slice(
                    lane, "message", "all_to_all_single", begin + MS, begin + MS, 0,
                    {**urgent, word: peer, "bytes": SMALL},
                )  # fmt: skip


def check_lanes(run: Run) -> None:
    """What the timeline finds in the trace is what the meter has measured by other means."""
    window = window_of(run, 100_000, first=0)
    assert window is not None and window.first == 0
    for rank in run.ranks.values():
        states = lane_of(rank, window).states
        before = window.begin
        for step in rank.steps:
            loads = clip(rank.loads, before, step.begin)
            spans = union([*loads.tolist(), (step.begin, step.end)])
            times = {state: total(intersect(times, spans)) for state, times in states.items()}
            assert times.pop("stragglers") == step.time.stragglers_ns
            assert times.pop("compute") + times.pop("loader") > 0
            assert sum(times.values()) == step.time.communication_ns
            before = step.end
