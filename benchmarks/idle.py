"""What waiting costs: CPU time of a process whose peer comes late to a collective.

    python benchmarks/idle.py                       # 10 s, freescale and gloo
    python benchmarks/idle.py --seconds 3 --sizes 4KiB

Rank 0 enters an all_to_all_single at once, rank 1 some seconds later. Printed is the CPU time, user
and system, that rank 0's whole process used from entering the call until it returned: the waiting
thread, the backend's own threads, and the exchange itself. The sizes (bytes of a rank's input)
stand for the two ways of a transport, small messages inline and large ones in chunks.
"""

from __future__ import annotations

import argparse
import time

import torch.distributed as dist

from freescale_pg.bench.exchange import Exchange
from freescale_pg.bench.ranks import Ranks
from freescale_pg.bench.results import CANDIDATE
from freescale_pg.bench.roster import TORCH_BACKENDS, choose_contestants
from freescale_pg.bench.script import print_table_of
from freescale_pg.bench.table import markdown, parse_size, size_text
from targets import IDLE_CPU_SECONDS_AT_MOST

_HEADER = ["backend", "size", "waited s", "CPU s", "target"]
_RANKS = 2
# The target is for a wait of this many seconds; it is scaled to others.
_TARGET_WAIT = 10.0


def wait_for_late_peer(exchange: Exchange, seconds: float, ranks: Ranks) -> tuple[float, float]:
    """Exchanges once, with rank 1 late by ``seconds``. A collective call.

    Returns:
        Wall and CPU seconds of this process inside the call.
    """
    exchange.run()
    dist.barrier()
    if ranks.rank == 1:
        time.sleep(seconds)
    wall, cpu = time.perf_counter(), time.process_time()
    exchange.run()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(options: argparse.Namespace, ranks: Ranks) -> list[list[str]]:
    """Waits once per backend and size; returns the table's rows. A collective call."""
    allowed = IDLE_CPU_SECONDS_AT_MOST * options.seconds / _TARGET_WAIT
    rows = []
    for name in choose_contestants(options.backends, ranks, TORCH_BACKENDS):
        group = dist.new_group(backend=name)
        for size in options.sizes:
            exchange = Exchange(size, ranks, group)
            wall, cpu = wait_for_late_peer(exchange, options.seconds, ranks)
            verdict = f"{'met' if cpu <= allowed else 'MISSED'} ≤ {allowed:.3g}"
            target = verdict if name == CANDIDATE else "–"
            rows.append([name, size_text(size), f"{wall:.2f}", f"{cpu:.4f}", target])
    return rows


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", nargs="+", choices=TORCH_BACKENDS)
    parser.add_argument("--seconds", type=float, default=_TARGET_WAIT, help="rank 1's delay")
    sizes = [parse_size("4KiB"), parse_size("1MiB")]
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=sizes)
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = parse_arguments()
    print_table_of(__file__, _RANKS, lambda ranks: markdown(_HEADER, measure(options, ranks)))


if __name__ == "__main__":
    main()
