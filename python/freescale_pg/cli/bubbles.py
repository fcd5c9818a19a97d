"""``freescale bubbles``: where the time of training steps went, from traces of torch.profiler."""

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument(
        "traces",
        nargs="+",
        type=Path,
        metavar="trace.json",
        help="of torch.profiler, one for each rank, also as .json.gz; of any backend",
    )
    parser.add_argument("--steps", action="store_true", help="show every step of every rank")
    parser.add_argument("--json", action="store_true", help="print JSON in the place of tables")


def run(arguments: argparse.Namespace) -> int:
    """Reads the traces and prints what they tell.

    Raises:
        ValueError: A file cannot be used, or the files do not go together.
        OSError: A file cannot be read.
    """
    from freescale_pg.observe.bubbles import read_traces

    report = read_traces(arguments.traces)
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=1))
        return 0
    if arguments.steps:
        print(report.step_table(), end="\n\n")
    print(report)
    return 0
