"""What balancing a stream does to the ranks' loads, what it moves, and what a step pays for it.

    python benchmarks/online_balance.py                    # 2 ranks, 128 samples each
    python benchmarks/online_balance.py --ranks 4 --samples-per-rank 32 --batches 50

Every rank has a stream of batches of its own: per sample its tokens (int64, jagged), 16 float32
features and a float32 label, with the lognormal lengths of balance.py and a cost of L + L²/1024.
Tolerance is 1.05. *Before*, *after* and *floor* are sums over the batches of the heaviest rank's
load, over the sums of mean loads. *Moved* is the mean share of the samples that change rank,
*worst* that of one batch, *skipped* the share of batches in which nothing moves. *Step ms* is what
a training loop waits for, from a barrier on: beginning the gather of the next batch and applying
this one; medians over the batches of the slowest rank, of all and of those in which samples move.
*CPU ms* is the processor time of the calling thread for that, the median over batches of the mean
over ranks. Machines whose cores are shared with others lengthen the former, not the latter.
"""

from __future__ import annotations

import argparse
import time
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from balancing.length_sets import lognormal
from freescale_pg import OnlineBalancer
from freescale_pg.balance import Jagged, Quadratic
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CANDIDATE
from freescale_pg.bench.roster import TORCH_BACKENDS, choose_contestants
from freescale_pg.bench.script import print_table_of
from freescale_pg.bench.table import markdown
from targets import ONLINE_MOVED_SHARE_AT_MOST, ONLINE_OVER_FLOOR_AT_MOST

_COST = Quadratic(1, 1 / 1024)
_FEATURES = 16
_WARM_UP = 5
_HEADER = [
    "backend",
    "counts",
    "W × b",
    "before",
    "after",
    "floor",
    "moved %",
    "worst %",
    "skipped %",
    "KiB moved",
    "step ms",
    "with moves",
    "CPU ms",
    "targets",
]

Counts = Literal["equal", "uneven"]
Batch = dict[str, object]


class Contest:
    """One backend and way of counting.

    Attributes:
        name: The backend.
        counts: What the balancer was told.
        balancer: Of the measured batches.
        notes: Of each batch, shape ``[batches, 3]``: seconds, processor seconds, samples moved.
    """

    def __init__(
        self, name: str, counts: Counts, group: dist.ProcessGroup, stream: list[Batch]
    ) -> None:
        self.name = name
        self.counts = counts
        for _ in OnlineBalancer(group, _cost_of, counts=counts).balance(stream[:_WARM_UP]):
            pass
        self.balancer = OnlineBalancer(group, _cost_of, counts=counts)
        self.notes = torch.zeros(len(stream), 3, dtype=torch.float64)
        self._ahead = self.balancer.plan_async(stream[0])

    def step(self, number: int, following: Batch | None) -> None:
        """Plans the next batch and applies this one; collective."""
        dist.barrier()
        wall, processor = time.perf_counter(), time.thread_time()
        planned, self._ahead = self._ahead, self.balancer.plan_async(following)
        balanced = self.balancer.apply(planned)
        processor, wall = time.thread_time() - processor, time.perf_counter() - wall
        assert balanced is not None
        row = [wall, processor, float(balanced.samples_moved)]
        self.notes[number] = torch.tensor(row, dtype=torch.float64)

    def finish(self) -> None:
        """Ends the stream, and turns the notes into those of all ranks; collective."""
        assert self.balancer.apply(self._ahead) is None
        mean = self.notes / dist.get_world_size()
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        dist.all_reduce(self.notes, dist.ReduceOp.MAX)
        self.notes[:, 1] = mean[:, 1]


def make_stream(ranks: Ranks, samples: int, batches: int) -> list[Batch]:
    """Returns this rank's batches; other ranks have other lengths."""
    everything = lognormal()
    here = slice(ranks.rank * samples * batches, (ranks.rank + 1) * samples * batches)
    if here.stop > len(everything):
        raise SystemExit(f"only {len(everything)} lengths: ask for fewer batches or samples")
    stream: list[Batch] = []
    for lengths in np.split(everything[here], batches):
        tokens = torch.arange(int(lengths.sum()))
        stream.append(
            {
                "tokens": Jagged(tokens, torch.from_numpy(lengths)),
                "features": torch.zeros(samples, _FEATURES),
                "label": torch.zeros(samples),
            }
        )
    return stream


def _cost_of(batch: Batch) -> np.typing.NDArray[np.float64]:
    tokens = batch["tokens"]
    assert isinstance(tokens, Jagged)
    return _COST(tokens.lengths.numpy().astype(np.float64))


def row_of(contest: Contest, size: str) -> list[str]:
    """One line of the table."""
    stats = contest.balancer.stats()
    seconds, processor_seconds, moved = contest.notes.unbind(1)
    share = stats.samples_moved / stats.samples
    worst = float(moved.max()) / (stats.samples / stats.batches)
    verdicts = [
        _judged("moved", share, ONLINE_MOVED_SHARE_AT_MOST),
        _judged("over floor", stats.after / stats.floor, ONLINE_OVER_FLOOR_AT_MOST),
    ]
    return [
        contest.name,
        contest.counts,
        size,
        *(f"{ratio:.3f}" for ratio in (stats.before, stats.after, stats.floor)),
        f"{100 * share:.2f}",
        f"{100 * worst:.1f}",
        f"{100 * stats.skipped / stats.batches:.0f}",
        f"{stats.bytes_moved / stats.batches / 1024:.0f}",
        _milliseconds(seconds),
        _milliseconds(seconds[moved > 0]),
        _milliseconds(processor_seconds),
        ", ".join(verdicts) if contest.name == CANDIDATE else "–",
    ]


def _milliseconds(seconds: torch.Tensor) -> str:
    return f"{1e3 * float(seconds.median()):.2f}" if len(seconds) else "–"


def _judged(name: str, value: float, limit: float) -> str:
    return f"{'met' if value <= limit else 'MISSED'} {name} {value:.4g} ≤ {limit:g}"


def run(options: argparse.Namespace, ranks: Ranks) -> str:
    """Measures all contestants, which take turns batch by batch; collective."""
    stream = make_stream(ranks, options.samples_per_rank, options.batches)
    contests = [
        Contest(name, counts, dist.new_group(backend=name), stream)
        for name in choose_contestants(options.backends, ranks, TORCH_BACKENDS)
        for counts in options.counts
    ]
    for number in range(len(stream)):
        following = stream[number + 1] if number + 1 < len(stream) else None
        for contest in contests:
            contest.step(number, following)
    for contest in contests:
        contest.finish()
    size = f"{ranks.world_size} × {options.samples_per_rank}"
    return markdown(_HEADER, [row_of(contest, size) for contest in contests])


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", choices=TORCH_BACKENDS)
    parser.add_argument("--counts", nargs="+", choices=["equal", "uneven"], default=["equal"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--samples-per-rank", type=int, default=128)
    parser.add_argument("--batches", type=int, default=200)
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = parse_arguments()
    print_table_of(__file__, options.ranks, lambda ranks: run(options, ranks))


if __name__ == "__main__":
    main()
