"""How many bubbles balance, prioritised overlap and SM-free communication remove from real steps.

    make bubbles                                           # the table: 3 minutes
    make bubbles ARGS=--sensitivity                        # and what it depends on: 10 minutes
    python benchmarks/emulated_cluster.py --ranks 16
    python benchmarks/emulated_cluster.py --baseline freescale       # without root

Each rank is a process that trains for real, but for what a GPU would compute: that is a sleep as
long as its samples cost. Sampler, loader, embedding look-ups and their exchange, gradients,
reductions, pipeline and backends are the real ones, on links of a limited rate. The modes:

- *baseline*: gloo, torch's ``DistributedSampler``, ids, vectors and gradients when they are needed;
- *+ balance*: the same with ``BalancedBatchSampler``;
- *+ prioritised overlap*: freescale, ``OverlapPipeline`` and ``BalancedBatchSampler``;
- *+ SM-free*: the same, and computing is not slowed down by communication.

**The slowdown is put in, not measured**, for want of a GPU: in all modes but the last, computing
takes ``--slowdown-percent`` longer while an exchange of its rank is under way. *no slowdown* is the
baseline without it, which *+ SM-free* is held against as well.

gloo's ranks run in network namespaces shaped by the kernel, freescale's under
``FREESCALE_EMULATED_LINK_RATE``. Without root or iproute2, or with ``--baseline freescale``, the
baseline is freescale's own blocking schedule. ``emulated/emulation.py`` tells how the machine of
``docs/simulation.md`` is scaled down; ``docs/emulated-cluster.md`` has numbers and limits.

All modes train on the same global batches, which is checked, and take turns: some steps each, for
some rounds, of new batches each time. Not counted are the first steps of each turn.

*Bubble* is 1 - compute / (ranks · step time), with what a rank computes at full speed. It consists
of *stragglers* (waiting for an exchange that some rank has not asked for yet), *communication*
(waiting for one that all have asked for), the *slowdown*, and the *rest*: processor time of
look-ups and copies, and late wakes, which count against every mode. Of freescale,
``fs.BubbleMeter`` tells the first two; of gloo, when each rank asked and waited, by one clock.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

import freescale_pg as fs
from emulated.emulation import Emulation, Feed
from emulated.rank_seconds import (
    NotedStep,
    RankNotes,
    RankSeconds,
    global_batches,
    gone,
    seconds_of,
)
from emulated.served_ranks import ServedRanks, serve, served_ranks
from freescale_pg.bench.launch import LaunchError, say_if_busy, started_ranks
from freescale_pg.bench.ranks import Ranks, joined, started_as_rank, usable_cores
from freescale_pg.bench.shaped import ShapingUnavailableError, started_shaped
from freescale_pg.bench.table import markdown
from freescale_pg.bench.timed_training import Training
from freescale_pg.simulate.lengths import Lognormal, Zipf
from freescale_pg.simulate.modes import gone as simulated_gone
from freescale_pg.simulate.modes import simulate
from targets import BUBBLES_GONE

_SEED = 20
_LONGEST = 4096
# After a pause links and pipelines need one step to be as in the middle of a training.
_WARM_UP = 1
_VARIED_STEPS = 3
# Ranks wait five minutes for a request (freescale_pg/bench/ranks.py), while up to three
# turns of others pass, whose steps take up to three times as long as they compute.
_LONGEST_TURN = 300.0 / 3 / 3
_SIMULATED_STEPS = 60
_HEADER = (
    "mode",
    "step ms",
    "bubble %",
    "stragglers %",
    "communication %",
    "slowdown %",
    "rest %",
    "gone %",
    "by this %",
)
_SENSITIVITY_HEADER = (
    "changed",
    "baseline %",
    "left %",
    "of it rest %",
    "gone %",
    "by balance %",
    "simulated gone %",
    "target",
)


@dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        name: Shown in the table.
        is_baseline: Whether it runs on the baseline's backend, and each exchange is waited for;
            otherwise freescale's overlap.
        is_balanced: Whether samples are dealt out by cost.
        is_slowed: Whether exchanges slow computing down.
    """

    name: str
    is_baseline: bool
    is_balanced: bool
    is_slowed: bool


BASELINE = Mode("baseline", True, False, True)
BALANCE = Mode("+ balance", True, True, True)
OVERLAP = Mode("+ prioritised overlap", False, True, True)
SM_FREE = Mode("+ SM-free", False, True, False)
UNSLOWED = Mode("baseline, no slowdown", True, False, False)
STEPWISE = (BASELINE, BALANCE, OVERLAP, SM_FREE)
MODES = (*STEPWISE, UNSLOWED)


# --- The ranks' side --------------------------------------------------------------------------


class Member:
    """What a rank may be asked for; all of a backend are asked for the same at the same time."""

    def __init__(self, ranks: Ranks, backend: str) -> None:
        self._ranks = ranks
        self._backend = backend
        group = dist.new_group(backend=backend)
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._trainings: dict[str, tuple[Training, Feed]] = {}

    def prepare(self, mode: Mode, emulation: Emulation, slowdown: float) -> None:
        """Makes a training."""
        feed = Feed(emulation, self._ranks.rank, is_balanced=mode.is_balanced)
        training = Training(
            mode.name,
            feed.work(),
            self._group,
            overlap=not mode.is_baseline,
            slowdown=slowdown if mode.is_slowed else 0.0,
        )
        self._trainings[mode.name] = training, feed

    def forget(self, name: str) -> None:
        """Ends a training."""
        training, _ = self._trainings.pop(name)
        training.close()

    def run(self, name: str, warm_up: int, measured: int) -> RankNotes:
        """Takes steps of a training, and tells what happened in those after the warm-up."""
        training, feed = self._trainings[name]
        computing = _StepNotes(training)
        meter = fs.BubbleMeter() if self._backend == "freescale" else None
        training.notes.clear()
        first = training.taken + warm_up
        dist.barrier()
        training.run(warm_up, measured, partial(computing.around, meter))
        metered = (
            [None] * measured
            if meter is None
            else list(meter.report().ranks[self._ranks.rank].steps)
        )
        waits = training.notes.waits
        return RankNotes(
            tuple(
                NotedStep(
                    step.begin,
                    step.end,
                    compute,
                    slowed,
                    tuple(wait for wait in waits if step.begin <= wait.begin <= step.end),
                    of_meter,
                    tuple(int(place) for place in feed.samples[first + number]),
                )
                for number, (step, (compute, slowed), of_meter) in enumerate(
                    zip(training.steps[-measured:], computing.found, metered, strict=True)
                )
            ),
            dict(training.notes.asked),
            computing.processor,
        )


class _StepNotes:
    """What each measured step computed, by how much it was slowed, and the CPU time of all."""

    def __init__(self, training: Training) -> None:
        self.found: list[tuple[float, float]] = []
        self.processor = 0.0
        self._compute = training.compute

    @contextmanager
    def around(self, meter: fs.BubbleMeter | None) -> Iterator[None]:
        """Notes the step in the block."""
        slowed, processor = self._compute.slowed, time.process_time()
        with ExitStack() as stack:
            if meter is not None:
                stack.enter_context(meter.step())
            yield
        self.processor += time.process_time() - processor
        self.found.append((self._compute.present.total, self._compute.slowed - slowed))


# --- The launcher's side ----------------------------------------------------------------------


class Cluster:
    """Ranks of the baseline's backend, and of freescale.

    Attributes:
        baseline: Name of the baseline's backend.
    """

    def __init__(self, baseline: str, teams: Mapping[str, ServedRanks]) -> None:
        self.baseline = baseline
        self._teams = teams

    def team(self, mode: Mode) -> ServedRanks:
        """Returns the ranks that run a mode."""
        return self._teams[self.baseline if mode.is_baseline else "freescale"]


@contextmanager
def started_cluster(options: argparse.Namespace) -> Iterator[Cluster]:
    """Starts all ranks, and ends them after the block."""
    say_if_busy()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="freescale-bench-"))

        def ranks_of(
            backend: str, start: Callable[..., Any], place: int | dict[str, str]
        ) -> ServedRanks:
            path = Path(folder) / backend
            arguments = ["--backend", backend, "--socket", str(path)]
            begin = partial(start, __file__, arguments, options.ranks, place)
            return stack.enter_context(served_ranks(path, begin))

        teams = {}
        if options.baseline == "gloo":
            try:
                teams["gloo"] = ranks_of("gloo", started_shaped, int(options.rate))
            except ShapingUnavailableError as error:
                print(
                    f"gloo is left out: {error}; the baseline is freescale's blocking schedule",
                    file=sys.stderr,
                )
        limited = {"FREESCALE_EMULATED_LINK_RATE": str(int(options.rate))}
        teams["freescale"] = ranks_of("freescale", started_ranks, limited)
        yield Cluster(next(iter(teams)), teams)


def measure(
    cluster: Cluster,
    emulation: Emulation,
    modes: Sequence[Mode],
    slowdown: float,
    steps: Sequence[int],
) -> list[dict[Mode, RankSeconds]]:
    """Runs the modes in turn; returns for each round where the time went.

    Args:
        cluster: The ranks.
        emulation: What they train.
        modes: How.
        slowdown: By what part computing takes longer while an exchange is under way.
        steps: That are measured, in each round.

    Raises:
        RuntimeError: The modes did not train on the same global batches.
    """
    for mode in modes:
        cluster.team(mode).ask("prepare", mode, emulation, slowdown)
    order = list(modes)
    shuffle = random.Random(_SEED).shuffle
    found = []
    for measured in steps:
        shuffle(order)
        notes: dict[Mode, list[RankNotes]] = {
            mode: cluster.team(mode).ask("run", mode.name, _WARM_UP, measured) for mode in order
        }
        check_same_batches(notes)
        found.append({mode: seconds_of(notes[mode]) for mode in modes})
    for mode in modes:
        cluster.team(mode).ask("forget", mode.name)
    return found


def check_same_batches(notes: Mapping[Mode, Sequence[RankNotes]]) -> None:
    """Checks that all modes trained on the same samples in each step, and so computed the same.

    Raises:
        RuntimeError: They did not.
    """
    (first, ranks), *others = notes.items()
    expected, compute = global_batches(ranks), seconds_of(ranks).compute
    for mode, of_mode in others:
        if global_batches(of_mode) != expected:
            raise RuntimeError(f"{mode.name} trained on other global batches than {first.name}")
        found = seconds_of(of_mode).compute
        if abs(found - compute) > 1e-9 * compute:
            raise RuntimeError(f"{mode.name} computed {found} s, and {first.name} {compute} s")


def total(rounds: Sequence[Mapping[Mode, RankSeconds]], mode: Mode) -> RankSeconds:
    """Adds up all rounds of a mode."""
    return sum((each[mode] for each in rounds), RankSeconds())


def table(rounds: Sequence[Mapping[Mode, RankSeconds]]) -> str:
    """Returns a line for each mode; *by this* is what the mode adds to *gone*."""
    baseline = total(rounds, BASELINE)
    lines, before = [], 0.0
    for mode in MODES:
        time_of = total(rounds, mode)
        parts = (time_of.stragglers, time_of.communication, time_of.slowdown, time_of.rest)
        now = gone(time_of, baseline)
        added = [f"{100 * now:.1f}", f"{100 * (now - before):.1f}"]
        lines.append(
            [
                mode.name,
                f"{1e3 * time_of.step_seconds:.0f}",
                f"{100 * time_of.bubble:.2f}",
                *(f"{100 * part / time_of.elapsed:.2f}" for part in parts),
                *(added if mode in STEPWISE else ["–", "–"]),
            ]
        )
        before = now
    return markdown(_HEADER, lines)


def remarks(
    rounds: Sequence[Mapping[Mode, RankSeconds]],
    emulation: Emulation,
    options: argparse.Namespace,
    backend: str,
) -> list[str]:
    """Returns what belongs below the table."""
    times = {mode: total(rounds, mode) for mode in MODES}
    best = [gone(each[SM_FREE], each[BASELINE]) for each in rounds]
    whole = times[BASELINE]
    cores = usable_cores()
    used = [each.processor / (each.elapsed / options.ranks * cores) for each in times.values()]
    metered = [mode for mode in MODES if not mode.is_baseline or backend == "freescale"]
    unslowed = gone(times[SM_FREE], times[UNSLOWED])
    return [
        f"{options.ranks} ranks, {emulation.samples_per_rank} samples on each; baseline on"
        f" {backend}; {whole.steps // options.ranks} steps of each mode in {len(rounds)} rounds.",
        f"Links of {emulation.link_bytes_per_second / 1e6:g} MB/s stand for cards of"
        f" {8 * emulation.card_bytes_per_second / 1e9:g} Gbit/s: time is stretched"
        f" {emulation.stretch:.1f} times, and of the bytes 1 in {1 / emulation.thinning:.1f} is"
        " there.",
        f"All modes trained on the same global batches: {whole.compute:.3f} rank-seconds of compute"
        " in each.",
        f"fs.BubbleMeter and the notes of the benchmark differ by"
        f" {100 * max(times[mode].disagreement for mode in metered):.2f} % of the time at most.",
        f"Processor time: {100 * min(used):.0f} to {100 * max(used):.0f} % of {cores} cores.",
        f"Bubbles gone: {100 * gone(times[SM_FREE], whole):.1f} % ({100 * min(best):.1f} to"
        f" {100 * max(best):.1f} % in single rounds), with a slowdown of"
        f" {options.slowdown_percent:g} % put in: {verdict(gone(times[SM_FREE], whole))}.",
        f"With no slowdown in any mode: {100 * unslowed:.1f} %: {verdict(unslowed)}.",
    ]


def verdict(removed: float) -> str:
    """Holds what was removed against the target."""
    return f"{'met' if removed >= BUBBLES_GONE else 'MISSED'} ≥ {100 * BUBBLES_GONE:g}"


# --- What it depends on -----------------------------------------------------------------------


def variations(plain: Emulation) -> list[tuple[str, Emulation]]:
    """Returns what is changed, one thing at a time."""
    card = plain.card_bytes_per_second
    return [
        ("tail: Zipf 1.05", replace(plain, lengths=Zipf(1.05, _LONGEST))),
        ("tail: Zipf 1.5", replace(plain, lengths=Zipf(1.5, _LONGEST))),
        (
            "tail: lognormal, median 200, σ 1",
            replace(plain, lengths=Lognormal(200.0, 1.0, _LONGEST)),
        ),
        ("8 samples per rank", replace(plain, samples_per_rank=8)),
        ("128 samples per rank", replace(plain, samples_per_rank=128)),
        ("no rows shared", replace(plain, shared=0.0)),
        ("all rows shared", replace(plain, shared=1.0)),
        ("cards four times as fast", replace(plain, card_bytes_per_second=4 * card)),
        ("cards half as fast", replace(plain, card_bytes_per_second=card / 2)),
        ("cards a quarter as fast", replace(plain, card_bytes_per_second=card / 4)),
    ]


def sensitivity(
    cluster: Cluster, plain: Emulation, slowdown: float, steps: int
) -> Iterator[tuple[str, Emulation, dict[Mode, RankSeconds]]]:
    """Yields each variation and its times."""
    for name, emulation in variations(plain.with_batches(batches_of([steps]))):
        modes = (BASELINE, BALANCE, SM_FREE)
        (times,) = measure(cluster, emulation, modes, slowdown, [steps])
        yield name, emulation, times


def sensitivity_line(
    name: str, emulation: Emulation, times: Mapping[Mode, RankSeconds], slowdown: float
) -> list[str]:
    """Returns the table's line of a variation."""
    baseline, balance, left = (times[mode] for mode in (BASELINE, BALANCE, SM_FREE))
    outcomes = simulate(emulation.scenario(slowdown, _SIMULATED_STEPS))
    removed = gone(left, baseline)
    return [
        name,
        f"{100 * baseline.bubble:.1f}",
        f"{100 * left.bubble:.2f}",
        f"{100 * left.rest / left.elapsed:.2f}",
        f"{100 * removed:.1f}",
        f"{100 * gone(balance, baseline):.1f}",
        f"{100 * simulated_gone(outcomes[-1], outcomes):.1f}",
        verdict(removed),
    ]


# --- The command ------------------------------------------------------------------------------


def batches_of(steps: Sequence[int]) -> int:
    """Returns how many global batches rounds of so many steps need; pipelines look two ahead."""
    return sum(_WARM_UP + each for each in steps) + 2


def emulation_of(options: argparse.Namespace) -> Emulation:
    """Returns what the options describe, with the batches of the table."""
    return Emulation(
        ranks=options.ranks,
        samples_per_rank=options.samples_per_rank,
        lengths=Zipf(options.zipf_exponent, _LONGEST),
        shared=options.shared_percent / 100,
        card_bytes_per_second=1e9 / 8 * options.card_gigabits_per_second,
        link_bytes_per_second=options.rate,
        compute_seconds=options.compute_seconds,
        batches=batches_of([options.steps] * options.rounds),
    )


def run_all(options: argparse.Namespace, emulation: Emulation) -> dict[str, Any]:
    """Measures and prints as it goes; returns all that was found."""
    record: dict[str, Any] = {"options": {k: str(v) for k, v in vars(options).items()}}
    slowdown = options.slowdown_percent / 100
    with started_cluster(options) as cluster:
        rounds = measure(cluster, emulation, MODES, slowdown, [options.steps] * options.rounds)
        below = remarks(rounds, emulation, options, cluster.baseline)
        print("\n".join([table(rounds), "", *(f"- {each}" for each in below)]), flush=True)
        record |= {"baseline": cluster.baseline, "rounds": [_as_json(each) for each in rounds]}
        if options.sensitivity:
            times = {mode: total(rounds, mode) for mode in MODES}
            lines = [sensitivity_line("nothing", emulation, times, slowdown)]
            record["sensitivity"] = {}
            steps = min(options.steps, _VARIED_STEPS)
            for name, changed, times in sensitivity(cluster, emulation, slowdown, steps):
                lines.append(sensitivity_line(name, changed, times, slowdown))
                record["sensitivity"][name] = _as_json(times)
                print(f"measured: {' | '.join(lines[-1])}", file=sys.stderr, flush=True)
            print(f"\n{markdown(_SENSITIVITY_HEADER, lines)}")
    return record


def _as_json(times: Mapping[Mode, RankSeconds]) -> dict[str, Any]:
    return {
        mode.name: {**asdict(found), "bubble": found.bubble, "rest": found.rest}
        for mode, found in times.items()
    }


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ranks", type=int, default=8)
    add("--baseline", choices=["gloo", "freescale"], default="gloo", help="its backend")
    add("--sensitivity", action="store_true", help="also change one thing at a time")
    add("--samples-per-rank", type=int, default=32)
    add("--zipf-exponent", type=float, default=1.2, help="of the lengths; smaller: heavier tail")
    add("--shared-percent", type=float, default=30.0, help="rows that the batch before had too")
    add("--card-gigabits-per-second", type=float, default=100.0, help="of the machine emulated")
    add("--slowdown-percent", type=float, default=18.9, help="of computing while communicating")
    add("--compute-seconds", type=float, default=2.5, help="of a step here, on average")
    add("--rate", type=float, default=20e6, help="bytes per second of the links here")
    add("--steps", type=int, default=4, help="of each mode that are measured in a round")
    add("--rounds", type=int, default=2)
    add("--json", type=Path, metavar="FILE", help="write all times")
    add("--backend", help=argparse.SUPPRESS)
    add("--socket", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("steps", "rounds", "rate"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be 1 or more, got {getattr(options, name)}")
    if options.ranks < 2:
        parser.error(f"--ranks must be 2 or more, as one waits for nobody; got {options.ranks}")
    if not 0 <= options.slowdown_percent < float("inf"):
        parser.error(f"--slowdown-percent must not be negative, got {options.slowdown_percent}")
    turn = (_WARM_UP + options.steps) * options.compute_seconds
    if turn > _LONGEST_TURN:
        parser.error(
            f"--steps {options.steps} of --compute-seconds {options.compute_seconds:g} compute"
            f" {turn:g} s in a turn, of {_LONGEST_TURN:.0f} s at most; take more --rounds"
        )
    return options


def main() -> None:
    """Runs as one of the ranks when a launcher started this process, else as the launcher."""
    options = parse_arguments()
    if started_as_rank():
        with joined() as ranks:
            serve(options.socket, ranks, Member(ranks, options.backend))
        return
    try:
        record = run_all(options, emulation_of(options))
    except (LaunchError, ValueError) as error:
        raise SystemExit(str(error)) from None
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
