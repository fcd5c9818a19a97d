"""How near ``freescale simulate`` comes to steps that are really made on this machine.

    python benchmarks/simulation.py                        # 2, 4 and 8 ranks: 14 minutes
    python benchmarks/simulation.py --ranks 4 --shared 0.1 --rate 1e6

Every rank trains on samples of lognormal lengths, a row of the table for each token, and dense
gradients in two buckets. Messages are those of the real backend and the real embedding exchange, on
links whose rate ``FREESCALE_EMULATED_LINK_RATE`` emulates; computing is a sleep as long as the
samples cost, so that it takes no CPU, as it would not with a GPU. Samples are dealt out in turn, or
as the balanced sampler does it.

*Measured* is the time of a step, mean of the ranks and median of the steps. All cases take turns
for some rounds, each of the same steps, and of each step the shortest is taken: sleeps and links
are never too fast, and whatever else runs here only makes steps longer. *Predicted* is that of
the same steps, from the same lengths, by the model that follows each chunk on each link
(``freescale_pg.simulate.link_by_link``); nothing in it was fitted to the measurement. *Error* is
predicted over measured, less one: the median of the steps, and that of the *worst* one. What the
model leaves out is the processor time of look-ups and copies, and of whatever else runs here: all
ranks share the cores. The slowdown by communication kernels cannot be measured without GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import numpy as np
import numpy.typing as npt
import torch.distributed as dist

from freescale_pg.balance import Quadratic
from freescale_pg.bench.arguments import integers
from freescale_pg.bench.launch import launch_or_exit
from freescale_pg.bench.ranks import Ranks, joined, started_as_rank
from freescale_pg.bench.table import markdown
from freescale_pg.bench.timed_training import (
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    Computing,
    FirstInFirstOut,
    TimedBatch,
    Training,
    Work,
    changing_ids,
)
from freescale_pg.simulate.cluster import Cluster
from freescale_pg.simulate.deal import deal
from freescale_pg.simulate.lengths import Lognormal
from freescale_pg.simulate.link_by_link import LinkByLinkSimulation
from freescale_pg.simulate.load import Loads, Sizes, StepLoad
from freescale_pg.simulate.regime import Regime
from freescale_pg.simulate.schedule import Schedule, Stage, blocking, overlapped
from targets import PREDICTED_WITHIN

_COST = Quadratic(1, 1 / 1024)
_LENGTHS = Lognormal(120.0, 0.8, 2048)
_WARM_UP = 2
# The pipeline asks for the ids of batches that are not trained on any more.
_AHEAD = 3
_FLOAT32_BYTES = 4
# cpp/scheduler/peer.h, Peer::kInlineBytes.
_INLINE_BYTES = 8 << 10
_HEADER = [
    "ranks",
    "schedule",
    "dealt out",
    "measured ms",
    "predicted ms",
    "error %",
    "worst %",
    "target",
]


@dataclass(frozen=True)
class Case:
    """One way to train.

    Attributes:
        name: Shown in the table.
        kind: What trains.
        schedule: The same, as the model has it.
        is_prioritised: Whether messages have their priorities.
        is_balanced: Whether samples are dealt out by cost.
    """

    name: str
    kind: type[Training]
    schedule: Schedule
    is_prioritised: bool
    is_balanced: bool


_CASES = (
    Case("blocking", Training, blocking, True, False),
    Case("blocking", Training, blocking, True, True),
    Case("FIFO", FirstInFirstOut, overlapped, False, True),
    Case("prioritised", Training, overlapped, True, False),
    Case("prioritised", Training, overlapped, True, True),
)


@dataclass(frozen=True)
class Plan:
    """What the ranks do in all steps; arrays have shape ``[batches, W]``.

    Attributes:
        rows: That a rank looks up.
        fresh: Those of them that the batch before had too.
        seconds: That it computes.
    """

    rows: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]


def plan(options: argparse.Namespace, ranks: int, *, is_balanced: bool) -> Plan:
    """Returns the same on all ranks, and where the prediction is made."""
    batches = _WARM_UP + options.steps + _AHEAD
    lengths = _LENGTHS.draw(4 * ranks * options.samples * batches, seed=ranks)
    dealt = list(deal(lengths, ranks, options.samples, _COST, batches, seed=0))
    shares = [each.balanced if is_balanced else each.in_turn for each in dealt]
    rows = np.array([share.tokens for share in shares]).astype(np.int64)
    costs = np.array([share.cost for share in shares])
    before = np.vstack([np.zeros((1, ranks), dtype=np.int64), rows[:-1]])
    fresh = np.minimum(np.rint(options.shared * rows).astype(np.int64), before)
    away = float(rows.mean()) * (ranks - 1) / ranks
    exchange = away * (4 + 2 * _FLOAT32_BYTES * options.dim) / options.rate
    return Plan(rows, fresh, costs * (options.compute * exchange / costs.mean()))


# --- The ranks' side --------------------------------------------------------------------------


def measure(options: argparse.Namespace, ranks: Ranks) -> list[list[float]]:
    """Returns the time of each step by case, mean of the ranks; collective."""
    rounds = [[_train(options, case, ranks) for case in _CASES] for _ in range(options.rounds)]
    return [
        [min(of_step) for of_step in zip(*of_rounds, strict=True)]
        for of_rounds in zip(*rounds, strict=True)
    ]


def _train(options: argparse.Namespace, case: Case, ranks: Ranks) -> list[float]:
    group = dist.new_group(backend="freescale")
    assert isinstance(group, dist.ProcessGroup)
    whole = plan(options, ranks.world_size, is_balanced=case.is_balanced)
    work = _work(options, whole, ranks)
    training = case.kind(case.name, work, group, overlap=case.schedule is overlapped)
    dist.barrier()
    training.run(_WARM_UP, options.steps)
    training.close()
    everyones: list[list[float]] = [[]] * ranks.world_size
    dist.all_gather_object(everyones, [step.end - step.begin for step in training.steps])
    return [fmean(of_step) for of_step in zip(*everyones, strict=True)]


def _work(options: argparse.Namespace, whole: Plan, ranks: Ranks) -> Work:
    rank = ranks.rank
    # So that none comes back while the batch before has it.
    pool = 4 * int(whole.rows.max())
    counts = zip(whole.rows[:, rank].tolist(), whole.fresh[:, rank].tolist(), strict=True)
    ids = changing_ids(counts, pool, rank)
    seconds = whole.seconds[:, rank].tolist()
    batches = (
        TimedBatch(each, Computing.divided(time)) for each, time in zip(ids, seconds, strict=True)
    )
    bucket = int(options.bucket_bytes) // _FLOAT32_BYTES
    return Work(ranks.world_size * pool, options.dim, batches, (bucket, bucket))


# --- The launcher's side ----------------------------------------------------------------------


def predict(options: argparse.Namespace, ranks: int, case: Case) -> list[float]:
    """Returns the time of each measured step, as simulated."""
    whole = plan(options, ranks, is_balanced=case.is_balanced)
    awaited = np.vstack([whole.fresh[1:], np.zeros((1, ranks))])
    batches = [
        StepLoad(
            rows.astype(np.float64),
            fresh.astype(np.float64),
            later.astype(np.float64),
            {
                Stage.FORWARD: FORWARD * seconds,
                Stage.BACKWARD: BACKWARD * seconds,
                Stage.OPTIMIZER: OPTIMIZER * seconds,
            },
        )
        for rows, fresh, later, seconds in zip(
            whole.rows, whole.fresh, awaited, whole.seconds, strict=True
        )
    ]
    sizes = Sizes(_FLOAT32_BYTES * options.dim, 4, (options.bucket_bytes,) * 2)
    machine = Cluster(
        ranks, ranks, options.rate, options.rate, inline_bytes=_INLINE_BYTES, limits_ingress=False
    )
    simulation = LinkByLinkSimulation(
        machine, Loads(sizes, batches), Regime(case.schedule, case.is_prioritised)
    )
    simulation.run(_WARM_UP)
    return simulation.step_seconds()[_WARM_UP : _WARM_UP + options.steps]


def rows_of(
    options: argparse.Namespace, ranks: int, times: Sequence[Sequence[float]]
) -> list[list[str]]:
    """Returns the table's lines for one number of ranks."""
    lines = []
    for case, measured in zip(_CASES, times, strict=True):
        predicted = predict(options, ranks, case)
        errors = [made / seen - 1 for made, seen in zip(predicted, measured, strict=True)]
        error = median(errors)
        lines.append(
            [
                str(ranks),
                case.name,
                "balanced" if case.is_balanced else "in turn",
                f"{1e3 * median(measured):.1f}",
                f"{1e3 * median(predicted):.1f}",
                f"{100 * error:+.1f}",
                f"{100 * max(errors, key=abs):+.1f}",
                f"{'met' if abs(error) <= PREDICTED_WITHIN else 'MISSED'} within"
                f" {100 * PREDICTED_WITHIN:g} %",
            ]
        )
    return lines


def run_all(options: argparse.Namespace) -> list[list[str]]:
    """Measures and predicts every case for each number of ranks."""
    os.environ["FREESCALE_EMULATED_LINK_RATE"] = str(int(options.rate))
    lines = []
    with tempfile.TemporaryDirectory(prefix="freescale-bench-") as directory:
        for ranks in options.ranks:
            path = Path(directory) / str(ranks)
            launch_or_exit(__file__, [*sys.argv[1:], "--out", str(path)], ranks)
            lines += rows_of(options, ranks, json.loads(path.read_text()))
    return lines


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--ranks", type=integers, default=[2, 4, 8], help="comma-separated")
    add("--rate", type=float, default=2.5e6, help="bytes per second that each rank sends")
    add("--samples", type=int, default=16, help="per rank and step")
    add("--shared", type=float, default=0.3, help="part of a batch that the one before had too")
    add("--dim", type=int, default=128)
    add("--bucket-bytes", type=float, default=250e3, help="of each of two buckets")
    add("--compute", type=float, default=1.2, help="as a multiple of the exchange's time")
    add("--steps", type=int, default=4, help="that are compared")
    add("--rounds", type=int, default=3, help="of the same steps")
    add("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Runs as one of the ranks when a launcher started this process, else as the launcher."""
    options = parse_arguments()
    if started_as_rank():
        with joined() as ranks:
            times = measure(options, ranks)
            if ranks.rank == 0:
                options.out.write_text(json.dumps(times))
        return
    print(markdown(_HEADER, run_all(options)))


if __name__ == "__main__":
    main()
