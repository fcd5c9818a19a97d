"""``freescale report``: one HTML page that shows a recorded run."""

import argparse
import shlex
import sys
from pathlib import Path

from freescale_pg.cli import simulate
from freescale_pg.report.page import render
from freescale_pg.report.png import write_png
from freescale_pg.report.reading import read_run
from freescale_pg.report.run import Run
from freescale_pg.report.scaling import Scaling, simulate_scaling, source_of
from freescale_pg.report.sections import Section, sections_of
from freescale_pg.simulate.scenario import Scenario

# Few, so that all sizes together take seconds.
_STEPS, _WARM_UP = 8, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("directory", type=Path, metavar="run/", help="directory that fs.record_run has written")
    add("-o", "--output", type=Path, metavar="FILE", help="the page; by default run/report.html")
    add("--png", type=Path, metavar="DIR", help="write each plot as PNG, too; needs matplotlib")
    add("--steps", type=int, default=6, help="steps in the timeline; 6 by default")
    add("--first-step", type=int, metavar="N", help="the timeline's first one")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--simulate",
        metavar="OPTIONS",
        help="options of `freescale simulate`, in one word: '--embedding-dim 64 --slowdown-percent"
        " 0'. Samples and their costs are the run's, if it has them and no option says otherwise",
    )
    group.add_argument("--no-simulate", action="store_true", help="leave the simulation out")


def run(arguments: argparse.Namespace) -> int:
    """Reads the run, writes the page, and says where it is.

    Raises:
        ValueError: The directory holds no run that can be used, or an option is out of range.
        OSError: A file cannot be read or written.
    """
    recorded = read_run(arguments.directory)
    sections = sections_of(
        recorded,
        steps=arguments.steps,
        first_step=arguments.first_step,
        scaling=_scaling(recorded, arguments),
    )
    output = arguments.directory / "report.html" if arguments.output is None else arguments.output
    output.write_text(render(recorded, sections), encoding="utf-8")
    print(output)
    for each in recorded.missing:
        print(f"missing: {each}")
    if arguments.png is not None:
        try:
            _write_plots(sections, arguments.png)
        except ImportError as error:
            print(f"freescale: {error}", file=sys.stderr)
            return 1
    return 0


def _write_plots(sections: list[Section], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for name, scene in section.figures.items():
            path = directory / f"{name}.png"
            write_png(scene, path)
            print(path)


def _scaling(recorded: Run, arguments: argparse.Namespace) -> Scaling | str:
    """The simulation, or why there is none."""
    if arguments.no_simulate:
        return "--no-simulate was given"
    if recorded.workload is None and arguments.simulate is None:
        return (
            "the run has no sampler whose lengths could be used. --simulate='' takes the samples of"
            " freescale simulate"
        )
    given = _simulate_options(arguments.simulate or "")

    def scenario_at(ranks: int) -> Scenario:
        given.ranks = ranks
        return simulate.scenario_of(given)

    source = source_of(
        recorded,
        has_lengths=given.lengths_file is None,
        has_cost=given.measured_steps is None,
    )
    try:
        return simulate_scaling(scenario_at, source)
    except ImportError as error:
        return f"it needs torch ({error})"


def _simulate_options(words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="freescale report --simulate")
    simulate.add_arguments(parser)
    parser.set_defaults(steps=_STEPS, warm_up_steps=_WARM_UP)
    return parser.parse_args(shlex.split(words))
