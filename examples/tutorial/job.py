"""What all steps of the tutorial have in common: options, the first rows, the outcome."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

import freescale_pg as fs
from histories import ITEMS
from ranker import DIM

# What is not of the tutorial alone lies beside it.
sys.path.append(str(Path(__file__).resolve().parents[1]))
from group_end import end_group

BATCH_SIZE = 32  # of a rank


def parse_options(description: str | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--samples", type=int, default=2560, help="histories to train on, once")
    parser.add_argument("--report", type=Path, help="file for the bubbles, as JSON")
    parser.add_argument("--traces", type=Path, help="directory for torch.profiler's traces")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of step 4")
    return parser.parse_args()


def own_device(kind: str) -> torch.device:
    """Returns this rank's device, after making it the current one; each rank needs its own GPU."""
    if kind == "cpu":
        return torch.device("cpu")
    rank = int(os.environ["LOCAL_RANK"])
    if rank >= torch.cuda.device_count():
        raise SystemExit(f"local rank {rank} has no GPU: there are {torch.cuda.device_count()}")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def first_rows() -> Tensor:
    """What the table begins with; the same whatever holds it."""
    return 0.1 * torch.randn(ITEMS, DIM, generator=torch.Generator().manual_seed(3))


@contextlib.contextmanager
def traced(directory: Path | None) -> Iterator[Callable[[], None]]:
    """Has torch.profiler write a trace for each rank, if there is a directory for them.

    Yields:
        What is to be called after each step.
    """
    if directory is None:
        yield lambda: None
        return
    directory.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    path = directory / f"trace{dist.get_rank()}.json"
    with profile(
        activities=activities,
        # Without a schedule the profiler does not note where steps begin.
        schedule=schedule(wait=5, warmup=1, active=20, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        yield profiler.step


def conclude(options: argparse.Namespace, losses: Sequence[Tensor], meter: fs.BubbleMeter) -> None:
    """Prints the mean loss of the last steps and the bubbles of all, and ends; collective.

    Args:
        options: Of the command line.
        losses: Means over this rank's samples, by step, weighted so that their mean over the ranks
            is that of the global batch.
        meter: Of the steps.
    """
    loss = torch.stack(list(losses[-10:])).mean().cpu()
    dist.all_reduce(loss)
    report = meter.report()
    if dist.get_rank() == 0:
        print(f"loss {float(loss) / dist.get_world_size():.6f}\n\n{report}")
        if options.report is not None:
            report.to_json(options.report)
    end_group()
