"""``freescale bench``: backends beside each other in one run, and the limit that none passes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from freescale_pg.bench.arguments import count, counts, names, names_among, parts, positive, sizes
from freescale_pg.bench.arguments import size as size_of
from freescale_pg.bench.cells import OPS
from freescale_pg.bench.definitions import COLLECTIVES, OVERLAP, PRIORITY

if TYPE_CHECKING:
    from freescale_pg.bench.mode import Mode

_DEFAULT_MODE = "collectives"
_SIZES = "64B,4KiB,64KiB,1MiB,16MiB,128MiB"
_STARTS = (
    "Starts ranks of its own on this machine; as a rank of torchrun or mpirun it measures on those"
    " of the job, and rank 0 prints."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the modes and their options."""
    parser.epilog = _STARTS
    modes = parser.add_subparsers(dest="mode", metavar="mode", required=True)
    for name, (about, definitions, add_options) in _MODES.items():
        mode = modes.add_parser(
            name,
            help=about,
            description=about,
            epilog=definitions,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_options(mode)
        mode.add_argument(
            "--device", choices=["cpu", "cuda"], default="cpu", help="of the tensors; default: cpu"
        )
        mode.add_argument("--json", type=Path, metavar="FILE", help="write all that was found")
        mode.add_argument("--csv", type=Path, metavar="FILE", help="write a line for each number")


def spell_out(words: Sequence[str]) -> list[str]:
    """Adds the mode where there is none."""
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        return [_DEFAULT_MODE, *words]
    return list(words)


def _add_collectives(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ops", type=names_among(OPS), default=list(OPS), metavar="OP,...", help=", ".join(OPS))
    add("--sizes", type=sizes, default=_SIZES, metavar="SIZE,...", help="default: %(default)s")
    add("--ranks", type=counts, metavar="N,...", help="a run for each; default: 2, or the job's")
    add(
        "--backends",
        type=names,
        metavar="NAME,...",
        help="names that torch knows, mpi, floor, limit; default: all usual ones there are",
    )
    add("--seconds", type=positive, default=1.0, help="for each operation and size; default: 1")


def _add_priority(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=count, metavar="N", help="default: 2, or the job's")
    add(
        "--backends",
        type=names,
        metavar="NAME,...",
        help="default: freescale and gloo, or nccl with --device cuda",
    )
    add("--urgent", type=size_of, default="256KiB", metavar="SIZE", help="default: %(default)s")
    add("--bulk", type=size_of, default="256MiB", metavar="SIZE", help="default: %(default)s")
    add("--rate", type=positive, default=200.0, help="urgent calls a second; default: %(default)g")
    add("--trials", type=count, default=15, metavar="N", help="of each kind; default: %(default)s")


def _add_overlap(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=count, metavar="N", help="default: 4, or the job's")
    add(
        "--backends",
        type=names,
        metavar="NAME,...",
        help="default: freescale and gloo, or nccl with --device cuda",
    )
    add("--shared", type=parts, default="0.1,0.3", metavar="PART,...", help="default: %(default)s")
    add("--rate", type=positive, help="bytes per second that each rank sends; default: 10e6")
    add("--ids", type=count, default=8192, metavar="N", help="per rank; default: %(default)s")
    add("--dim", type=count, default=128, metavar="N", help="of a row; default: %(default)s")
    add("--compute", type=positive, default=1.2, help="times the exchange; default: %(default)s")
    add(
        "--rounds", type=count, default=4, metavar="N", help="of 4 steps each; default: %(default)s"
    )
    add("--plot", type=Path, metavar="FILE", help="SVG or PNG of a step; needs matplotlib")


_MODES = {
    "collectives": (
        "Time every operation at every size, in turns. This is meant where no mode is given.",
        COLLECTIVES,
        _add_collectives,
    ),
    "priority": (
        "Time an urgent exchange while a bulk one is in flight on another group.",
        PRIORITY,
        _add_priority,
    ),
    "overlap": (
        "Time the steps of a training whose embedding exchange is overlapped or not.",
        OVERLAP,
        _add_overlap,
    ),
}


def run(arguments: argparse.Namespace) -> int:
    """Measures and prints; 1 if something failed.

    Raises:
        ValueError: Something that was asked for cannot be measured here.
        OSError: A file cannot be written.
    """
    from freescale_pg.bench.launch import LaunchError
    from freescale_pg.bench.mode import Outputs, carry_out

    try:
        return carry_out(_mode(arguments), Outputs(arguments.json, arguments.csv))
    except LaunchError as error:
        print(f"freescale: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("freescale: interrupted", file=sys.stderr)
        return 130


def _mode(given: argparse.Namespace) -> Mode:
    backends = None if given.backends is None else tuple(given.backends)
    if given.mode == "collectives":
        from freescale_pg.bench.collectives import CollectivesMode

        ranks = None if given.ranks is None else tuple(given.ranks)
        ops, sizes_given = tuple(given.ops), tuple(given.sizes)
        return CollectivesMode(ops, sizes_given, ranks, backends, given.device, given.seconds)
    if given.mode == "priority":
        from freescale_pg.bench.priority import PriorityMode

        return PriorityMode(
            ranks=given.ranks,
            backends=backends,
            device=given.device,
            urgent=given.urgent,
            bulk=given.bulk,
            rate=given.rate,
            trials=given.trials,
        )
    from freescale_pg.bench.overlap import OverlapMode

    return OverlapMode(
        ranks=given.ranks,
        backends=backends,
        device=given.device,
        shared=tuple(given.shared),
        rate=None if given.rate is None else round(given.rate),
        ids=given.ids,
        dim=given.dim,
        compute=given.compute,
        rounds=given.rounds,
        plot=given.plot,
    )
