"""What balanced batches do to a training: how evenly ranks work, its speed, what it learns.

    python benchmarks/balanced_training.py                # MovieLens-100k, 4 ranks, 6 epochs each
    python benchmarks/balanced_training.py --ranks 2 --data synthetic --epochs 2

Two trainings of the recommender in examples/ take turns epoch by epoch in one run: one deals each
global batch out with ``BalancedBatchSampler``, the other in turn, as ``DistributedSampler`` does.
Both see the same global batches and begin with the same weights, so their losses must agree.

* *load*: the heaviest rank's cost over the mean, as the sampler's cost model has it.
* *work*: the same of the CPU time that the ranks use in a step; the median over steps. Ranks that
  wait use none, so it is what a rank with a core, or a GPU, of its own would be busy for.
* *samples/s*: by the wall clock, over all ranks. Where ranks outnumber cores it hardly moves: a
  rank that waits leaves its core to the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from freescale_pg.bench.launch import launch_or_exit
from freescale_pg.bench.ranks import started_as_rank
from freescale_pg.bench.table import markdown

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from seqrec import dataset
from seqrec.settings import parse
from seqrec.train import Trainer

_BACKEND = "freescale"


class Training:
    """One of the two trainings, on one rank."""

    def __init__(self, name: str, options: argparse.Namespace, *, balance: bool) -> None:
        self.name = name
        self._balance = balance
        flags = [] if balance else ["--no-balance"]
        if options.max_steps is not None:
            flags.append(f"--max-steps={options.max_steps}")
        settings = parse([f"--data={options.data}", f"--epochs={options.epochs}", *flags])
        data, _ = dataset.load(settings.data, settings.cache)
        self._trainer = Trainer(settings, data)
        self._samples = 0
        self._seconds = 0.0
        self._work: list[float] = []  # CPU seconds of each step
        self.losses: list[float] = []

    def epoch(self, number: int) -> None:
        """Trains for an epoch; collective."""
        before = time.process_time()

        def note_step() -> None:
            nonlocal before
            now = time.process_time()
            self._work.append(now - before)
            before = now

        result = self._trainer.epoch(number, note_step)
        self._samples += result.samples
        self._seconds += result.seconds
        self.losses.append(result.loss)

    def row(self) -> list[str]:
        """Returns the table's row; collective."""
        loads = self._trainer.imbalance()
        everyones = [torch.empty(len(self._work)) for _ in range(dist.get_world_size())]
        dist.all_gather(everyones, torch.tensor(self._work))
        work = torch.stack(everyones)  # ranks, steps
        spread = float((work.amax(0) / work.mean(0)).median())
        return [
            self.name,
            f"{loads.after if self._balance else loads.before:.3f}",
            f"{spread:.3f}",
            f"{self._samples / self._seconds:.0f}",
            f"{self.losses[-1]:.5f}",
        ]


def run_as_rank(options: argparse.Namespace) -> None:
    """Trains twice, in turns; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group(_BACKEND)
    trainings = [
        Training("dealt in turn", options, balance=False),
        Training("balanced", options, balance=True),
    ]
    for number in range(1, options.epochs + 1):
        for training in trainings:
            training.epoch(number)
    rows = [training.row() for training in trainings]
    if dist.get_rank() == 0:
        print(markdown(["batches", "load", "work", "samples/s", "last loss"], rows))
        dealt, balanced = (
            torch.tensor(training.losses, dtype=torch.float64) for training in trainings
        )
        apart = float(((dealt - balanced) / dealt).abs().max())
        print(f"\nlosses of the same epoch differ by {apart:.1e} of their value at most")
    dist.destroy_process_group()


def main() -> None:
    """Runs as one of the ranks when a launcher started this process, else as the launcher."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6, help="of each of the two")
    parser.add_argument("--max-steps", type=int, help="of each of the two; for trying it out")
    parser.add_argument("--data", default="ml-100k", help="as for examples/train_seqrec.py")
    options = parser.parse_args()
    if started_as_rank():
        run_as_rank(options)
    else:
        launch_or_exit(__file__, sys.argv[1:], options.ranks)


if __name__ == "__main__":
    main()
