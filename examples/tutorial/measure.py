"""Measures the steps of docs/tutorial.md on this machine, in turn, and prints a table.

Usage:

    python examples/tutorial/measure.py [--rounds 5] [--ranks 2] [--rate 20MB]

Step 0 is gloo's, which a BubbleMeter cannot see into: its parts are those of torch.profiler's
traces, in a run of its own, and its time that of a run without the profiler.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from freescale_pg.observe import read_traces

_HERE = Path(__file__).resolve().parent
_PROGRAMS = ("step0_plain", "step1_backend", "step2_balanced", "step3_overlapped")
# Steps in which connections are made and memory is first touched.
_WARM_UP = 5
# What BubbleReport.to_json() writes.
_Report: TypeAlias = Mapping[str, Any]
_PARTS = ("compute", "loader", "stragglers", "communication")


@dataclass(frozen=True)
class Contestant:
    """A program of the tutorial, on links of a rate; None: as fast as the memory is."""

    program: str
    rate: str | None


@dataclass(frozen=True)
class _Run:
    """One run of a program.

    Attributes:
        timed: Where the time of its steps is from.
        divided: Where the parts of that are from.
    """

    timed: _Report
    divided: _Report


def main() -> None:
    """Runs all, and prints a row for each program and rate."""
    options = _parse()
    contestants = [Contestant(program, None) for program in _PROGRAMS]
    contestants += [Contestant(program, options.rate) for program in _PROGRAMS[1:]]
    found: dict[Contestant, list[_Run]] = {each: [] for each in contestants}
    try:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            measured = {each: _measured(each, options.ranks, options.samples) for each in found}
            for each, run in measured.items():
                found[each].append(run)
    except KeyboardInterrupt:
        print("interrupted: what follows is of the rounds before", file=sys.stderr)
    if not found[contestants[0]]:
        return
    print("| program | links | step ms | " + " | ".join(f"{part} %" for part in _PARTS) + " |")
    print("|---|---|--:|" + "--:|" * len(_PARTS))
    for each, runs in found.items():
        step_ms, percent = _shares([run.timed for run in runs], [run.divided for run in runs])
        cells = [f"{each.program}.py", each.rate or "memory", f"{step_ms:.1f}"]
        print("| " + " | ".join(cells + [f"{share:.1f}" for share in percent]) + " |")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2560, help="see the programs")
    parser.add_argument("--rate", default="20MB", help="of the emulated links: bytes a second")
    return parser.parse_args()


def _measured(contestant: Contestant, ranks: int, samples: int) -> _Run:
    with tempfile.TemporaryDirectory() as directory:
        file, traces = Path(directory, "report.json"), Path(directory, "traces")
        environment = {"FREESCALE_EMULATED_LINK_RATE": contestant.rate} if contestant.rate else {}
        arguments = [f"--samples={samples}"]
        _run(contestant.program, [*arguments, f"--report={file}"], ranks, environment)
        timed = json.loads(file.read_text())
        if contestant.program != _PROGRAMS[0]:
            return _Run(timed, timed)
        _run(contestant.program, [*arguments, f"--traces={traces}"], ranks, environment)
        return _Run(timed, read_traces(sorted(traces.iterdir())).to_dict())


def _run(program: str, arguments: Sequence[str], ranks: int, extra: Mapping[str, str]) -> None:
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [
        *(sys.executable, *launcher, f"--nproc-per-node={ranks}"),
        *(str(_HERE / f"{program}.py"), *arguments),
    ]
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ, **extra}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        status = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # Its own session: torchrun and its ranks.
            process.wait()
    if status != 0:
        raise SystemExit(f"{program}.py failed")


def _shares(timed: Sequence[_Report], divided: Sequence[_Report]) -> tuple[float, list[float]]:
    """Returns the time of a step in ms, and in percent how it divides into the parts.

    Of the same step in several rounds that counts in which it was shortest: it does the same in all
    of them, and what else the machine does only adds to it.
    """
    steps = _shortest(divided)
    whole = sum(step["total_ns"] for step in steps)
    parts = [sum(step[f"{part}_ns"] for step in steps) for part in _PARTS]
    mean = statistics.fmean(step["total_ns"] for step in _shortest(timed))
    return mean / 1e6, [100 * part / whole for part in parts]


def _shortest(rounds: Sequence[_Report]) -> list[Mapping[str, Any]]:
    """The times of all ranks in the shortest of the rounds, for each step after the warm-up."""
    steps: list[Mapping[str, Any]] = []
    # By round, then by step: the times of the ranks.
    by_rank = [zip(*(rank["steps"] for rank in each["ranks"]), strict=True) for each in rounds]
    for same in zip(*by_rank, strict=True):
        if same[0][0]["step"] >= _WARM_UP:
            steps += min(same, key=lambda ranks: sum(step["total_ns"] for step in ranks))
    if not steps:
        raise SystemExit(f"there are no steps after the first {_WARM_UP}: take more samples")
    return steps


if __name__ == "__main__":
    main()
