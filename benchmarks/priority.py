"""How an urgent exchange fares while a bulk one is in flight on another group.

    python benchmarks/priority.py                   # 2 ranks, freescale and gloo
    python benchmarks/priority.py --backends gloo --rate 100 --trials 10

Each backend gets two groups of all ranks. For freescale their priorities are URGENT and
BACKGROUND; gloo has no priorities and shows what the machine does without them. Three kinds of
trial take turns in a shuffled order, all on one schedule: the main thread sleeps until the next
tick (``--rate`` ticks a second), meets the other ranks in a barrier, and then

* *idle*: makes an urgent all_to_all_single; nothing else is in flight;
* *loaded*: the same, with a bulk all_to_all_single in flight since before the first tick;
* *bulk*: does nothing at the ticks, with the bulk exchange in flight.

Urgent latency is from the moment the last rank enters the call until the last rank has returned;
calls that the bulk exchange did not outlast on every rank are left out (*missed*). Bulk time is
from its issue until its future is set, on the slowest rank; its loss compares *loaded* with *bulk*.
Medians are printed. Sizes are bytes of a rank's input.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from bench.exchange import Exchange, InFlight
from bench.ranks import Ranks, agreed
from bench.results import CANDIDATE
from bench.roster import TORCH_BACKENDS, choose_contestants
from bench.script import print_table_of
from bench.spin_barrier import SpinBarrier
from bench.table import markdown, microseconds_text, parse_size, ratio_text, size_text
from targets import BULK_LOSS_AT_MOST, URGENT_SLOWDOWN_AT_MOST

_SEED = 20
# The last tick comes this far into the bulk exchange, so that its urgent call still meets it.
_TICKED_SHARE = 0.8
_CALIBRATION_RUNS = 3


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


def make_contest(name: str, options: argparse.Namespace, ranks: Ranks) -> Contest:
    """Builds the groups and buffers of one backend. A collective call."""
    urgent, background = _group(name, "URGENT"), _group(name, "BACKGROUND")
    return Contest(
        name, Exchange(options.urgent, ranks, urgent), Exchange(options.bulk, ranks, background)
    )


def _group(backend: str, priority: str) -> dist.ProcessGroup:
    options = None
    if backend == CANDIDATE:
        # Only here: gloo can be measured without the package.
        import freescale_pg

        options = freescale_pg.Options(priority=freescale_pg.Priority[priority])
    group: dist.ProcessGroup = dist.new_group(backend=backend, pg_options=options)
    return group


class Schedule:
    """The ticks of one trial and what this rank notes at each."""

    def __init__(self, barrier: SpinBarrier, interval: float) -> None:
        self._barrier = barrier
        self._interval = interval

    def run(self, ticks: int, urgent: Exchange | None, bulk: InFlight | None) -> torch.Tensor:
        """Goes through the ticks; makes the urgent call at each if there is one.

        Returns:
            float64, shape ``(ticks, 3)``: when the call began and ended, in seconds of the clock
            that all processes of a host share, and 1 if the bulk exchange was over by the end.
        """
        notes = torch.zeros(ticks, 3, dtype=torch.float64)
        first = time.perf_counter()
        for tick in range(ticks):
            time.sleep(max(0.0, first + (tick + 1) * self._interval - time.perf_counter()))
            self._barrier.wait()
            start = time.perf_counter()
            if urgent is not None:
                urgent.run()
            end = time.perf_counter()
            over = bulk is not None and bulk.is_over
            notes[tick] = torch.tensor([start, end, float(over)], dtype=torch.float64)
        return notes


def latencies(notes: torch.Tensor) -> tuple[list[float], int]:
    """Urgent latencies over all ranks. A collective call.

    Args:
        notes: this rank's, as ``Schedule.run`` returns them.

    Returns:
        Seconds from the last rank's start to the last rank's end, for each tick at which the bulk
        exchange outlasted the call on every rank; and how many ticks were left out.
    """
    latest = notes.clone()
    dist.all_reduce(latest, dist.ReduceOp.MAX)
    lasted = latest[:, 2] == 0
    spans = (latest[:, 1] - latest[:, 0])[lasted]
    return spans.tolist(), len(notes) - len(spans)


def idle_trial(contest: Contest, schedule: Schedule) -> None:
    """Urgent calls with nothing else in flight."""
    spans, _ = latencies(schedule.run(contest.ticks, contest.urgent, None))
    contest.idle += spans


def loaded_trial(contest: Contest, schedule: Schedule) -> None:
    """Urgent calls beside a bulk exchange."""
    seconds, notes = _bulk_exchange(contest, schedule, contest.urgent)
    spans, missed = latencies(notes)
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
    """Warms both exchanges up and sets how many ticks fit beside a bulk one."""
    contest.urgent.run()
    lasts = agreed(min(contest.bulk.start().wait() for _ in range(_CALIBRATION_RUNS)))
    contest.ticks = max(1, int(_TICKED_SHARE * lasts / interval))


def measure(options: argparse.Namespace, ranks: Ranks) -> list[Contest]:
    """Runs all trials of all backends. A collective call."""
    interval = 1.0 / options.rate
    # Yielding: a backend's own threads need the cores to carry the bulk bytes meanwhile.
    schedule = Schedule(SpinBarrier(ranks, yields=True), interval)
    names = choose_contestants(options.backends, ranks, TORCH_BACKENDS)
    contests = [make_contest(name, options, ranks) for name in names]
    for contest in contests:
        calibrate(contest, interval)
    kinds = (idle_trial, loaded_trial, bulk_trial)
    trials = [(kind, contest) for kind in kinds for contest in contests]
    shuffle = random.Random(_SEED).shuffle
    for _ in range(options.trials):
        shuffle(trials)
        for trial, contest in trials:
            trial(contest, schedule)
    return contests


def report(contests: Sequence[Contest], options: argparse.Namespace) -> str:
    """The findings as a Markdown table, with the targets beside freescale's."""
    header = ["backend", "urgent idle µs", "urgent loaded µs", "ratio", "bulk alone ms"]
    header += ["bulk loaded ms", "bulk loss", "calls beside/missed", "targets"]
    title = (
        f"urgent {size_text(options.urgent)} at {options.rate:g}/s beside bulk "
        f"{size_text(options.bulk)}, {options.ranks} ranks; medians"
    )
    return f"{title}\n\n{markdown(header, [_row(contest) for contest in contests])}"


def _row(contest: Contest) -> list[str]:
    idle, loaded = _median(contest.idle), _median(contest.loaded)
    alone, beside = _median(contest.bulk_alone), _median(contest.bulk_loaded)
    ratio, loss = loaded / idle, beside / alone - 1
    targets = _judged(ratio, loss) if contest.name == CANDIDATE else "–"
    urgent = [microseconds_text(idle * 1e6), microseconds_text(loaded * 1e6), ratio_text(ratio)]
    bulk = [f"{alone * 1e3:.1f}", f"{beside * 1e3:.1f}", f"{loss:+.1%}"]
    return [contest.name, *urgent, *bulk, f"{len(contest.loaded)}/{contest.missed}", targets]


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples) if samples else float("nan")


def _judged(ratio: float, loss: float) -> str:
    slowdown = "met" if ratio <= URGENT_SLOWDOWN_AT_MOST else "MISSED"
    bulk = "met" if loss <= BULK_LOSS_AT_MOST else "MISSED"
    return f"{slowdown} ratio ≤ {URGENT_SLOWDOWN_AT_MOST:g}; {bulk} loss ≤ {BULK_LOSS_AT_MOST:.0%}"


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", choices=TORCH_BACKENDS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--urgent", type=parse_size, default="256KiB", help="bytes")
    parser.add_argument("--bulk", type=parse_size, default="256MiB", help="bytes")
    parser.add_argument("--rate", type=float, default=200.0, help="urgent calls a second")
    parser.add_argument("--trials", type=int, default=15, help="of each kind")
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = parse_arguments()
    print_table_of(__file__, options.ranks, lambda ranks: report(measure(options, ranks), options))


if __name__ == "__main__":
    main()
