"""Collectives of freescale, gloo and an MPI, timed call by call in one run, beside the limit.

    python benchmarks/collectives.py                       # 2 ranks, every cell
    python benchmarks/collectives.py --ranks 2,4,8 --sizes 4KiB,1MiB,16MiB --json out.json
    python benchmarks/collectives.py --backends gloo,limit --ops all_to_all_single

All backends live in the same processes and take turns in a shuffled order, so that other load on
the machine hits all alike. MPI needs ``pip install -r benchmarks/requirements.txt``; without it,
or without freescale, the run says so and goes on with the others.

What a number means:

* *size* is the bytes of one rank's input tensor, so each of ``W`` peers gets ``size / W`` in an
  all-to-all and an all-gather's output has ``W * size`` bytes.
* a *time* is from the moment a rank enters the call (all leave a spin barrier together) until it
  returns; of the ranks the slowest counts; the median over the rounds is printed.
* *GB/s* is the output bytes of the rank that receives most, its own part included, over that time.
* *limit* is a copy of those bytes out of memory shared with the source, all ranks at once.
* *floor* is torch's dispatch of a call that does nothing, and then the limit's copies: what a torch
  backend called from Python cannot go below. MPI is called past that dispatch.
* *vs x* is the time of x over the time of freescale: above 1, freescale is faster.

Each contestant's result is checked once per cell, on poisoned outputs with data that differs by
rank and element. The script may also be started by mpirun or torchrun itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from bench.arguments import integers, names_among
from bench.cells import OPS, Cell, Workload
from bench.contestants import Contestant
from bench.interleave import choose_rounds, interleave
from bench.launch import LaunchError, find_mpirun, run_ranks
from bench.ranks import Ranks, agreed, joined, started_as_rank
from bench.results import CellResult, read_json, write_csv, write_json
from bench.roster import CONTESTANTS, choose_contestants, make_contestant
from bench.spin_barrier import SpinBarrier
from bench.table import microseconds_text, parse_size, size_text
from cell_report import report

_SIZES = "64B,4KiB,64KiB,1MiB,16MiB,128MiB"
# Other programs need memory too, and a machine that swaps measures its disk.
_MEMORY_SHARE = 0.6


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line; lists come as comma-separated words."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", type=names_among(OPS), default=list(OPS))
    parser.add_argument("--sizes", type=_sizes, default=_SIZES, help=f"default {_SIZES}")
    parser.add_argument("--ranks", type=integers, default="2", help="one run for each")
    parser.add_argument("--backends", type=names_among(CONTESTANTS), help="default: all there are")
    parser.add_argument("--min-time", type=float, default=1.0, help="seconds for each cell")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--csv", type=Path, help="file for the results")
    # The launching process passes this to its ranks to get their results for its own report.
    parser.add_argument("--hand-over", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _sizes(text: str) -> list[int]:
    return [parse_size(word) for word in text.split(",")]


def plan_cells(ops: Sequence[str], sizes: Sequence[int], ranks: Ranks) -> list[Cell]:
    """The cells that fit into memory, the same on every rank; rank 0 says which do not."""
    spare = agreed(_MEMORY_SHARE * _available_memory())
    cells = [Cell(op, size, ranks.world_size) for op in ops for size in sizes]
    too_large = [cell for cell in cells if cell.footprint_bytes > spare]
    if ranks.rank == 0:
        for cell in too_large:
            need = f"{cell.footprint_bytes / 1e9:.1f} GB of {spare / 1e9:.1f} GB"
            print(f"without {cell.op} {size_text(cell.size)}: needs {need}", file=sys.stderr)
    return [cell for cell in cells if cell not in too_large]


def _available_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next(line for line in lines if line.startswith("MemAvailable:"))
    return int(available.split()[1]) * 1024


def measure_cell(
    cell: Cell, contestants: Sequence[Contestant], barrier: SpinBarrier, rank: int, seconds: float
) -> CellResult:
    """Checks every contestant's result, then times them together. A collective call.

    Raises:
        RuntimeError: a contestant's output is wrong on this rank.
    """
    workload = Workload(cell, rank)
    calls = {contestant.name: contestant.prepare(workload) for contestant in contestants}
    dist.barrier()
    for contestant in contestants:
        workload.poison()
        barrier.wait()
        calls[contestant.name]()
        if contestant.fills_output(cell.op) and not workload.is_correct():
            raise RuntimeError(f"{contestant.name}: wrong result of {cell} on rank {rank}")
    workload.settle()
    rounds = choose_rounds(calls, barrier, seconds)
    return CellResult.of(cell, interleave(calls, barrier, rounds))


def measure(options: argparse.Namespace, ranks: Ranks) -> list[CellResult]:
    """Measures every cell on the ranks of this run; rank 0 tells of each. A collective call."""
    cells = plan_cells(options.ops, options.sizes, ranks)
    largest = max((cell.input_bytes for cell in cells), default=0)
    names = choose_contestants(options.backends, ranks)
    contestants = [make_contestant(name, largest, ranks) for name in names] if cells else []
    barrier = SpinBarrier(ranks, yields=ranks.oversubscribed)
    results = []
    for cell in cells:
        results.append(measure_cell(cell, contestants, barrier, ranks.rank, options.min_time))
        if ranks.rank == 0:
            print(_progress(results[-1]), file=sys.stderr, flush=True)
    return results


def _progress(result: CellResult) -> str:
    medians = ", ".join(
        f"{name} {microseconds_text(timing.median_us)}" for name, timing in result.timings.items()
    )
    return f"{result.ranks} ranks, {result.op} {size_text(result.size)}: {medians} µs"


def publish(results: Sequence[CellResult], options: argparse.Namespace) -> None:
    """Prints the report and writes the files that were asked for."""
    print(report(results))
    if options.json is not None:
        write_json(options.json, results)
    if options.csv is not None:
        write_csv(options.csv, results)


def run_as_rank(options: argparse.Namespace) -> None:
    """Measures; rank 0 hands the results over or, without a launching process, publishes them."""
    with joined() as ranks:
        results = measure(options, ranks)
    if ranks.rank != 0:
        return
    if options.hand_over is None:
        publish(results, options)
    else:
        write_json(options.hand_over, results)


def launch(options: argparse.Namespace) -> None:
    """Starts one run for each world size and publishes what they found."""
    wants_mpi = options.backends is None or "mpi" in options.backends
    mpirun = find_mpirun() if wants_mpi else None
    results: list[CellResult] = []
    with tempfile.TemporaryDirectory(prefix="freescale-bench-") as directory:
        handed_over = Path(directory) / "results.json"
        arguments = [*sys.argv[1:], "--hand-over", str(handed_over)]
        for world_size in options.ranks:
            run_ranks(__file__, arguments, world_size, mpirun)
            results += read_json(handed_over)
    publish(results, options)


def main() -> None:
    """Runs as one of the ranks when a launcher started this process, else as the launcher."""
    options = parse_arguments()
    if started_as_rank():
        run_as_rank(options)
        return
    try:
        launch(options)
    except LaunchError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
