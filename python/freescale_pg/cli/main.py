"""``freescale <command>``, also as ``python -m freescale_pg.cli``."""

import argparse
import importlib
import sys
from collections.abc import Sequence

# What each command does, as `freescale --help` says it. The command's module is loaded only when it
# is called, so that one that needs no torch does not wait for it. A module has
# add_arguments(parser), and run(arguments), which returns the exit status. It may have
# spell_out(words), which adds to what follows the command what is meant without being said.
COMMANDS: dict[str, str] = {
    "bench": "Time collectives of this backend beside others, and how near they come to a copy.",
    "bubbles": "Show where the time of training steps went, from traces of torch.profiler.",
    "doctor": "Try what ranks need on this machine, and say what to do about what does not work.",
    "info": "Show what there is, and how ranks reach each other; under torchrun, those of the job.",
    "report": "Make one HTML page of a recorded run: where its time went, links, latency.",
    "simulate": "Tell the bubbles of a training on 8 to 4096 ranks, and what removes them.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit status: 0, or 1 when the command failed, after a line on the standard error output.
        Arguments that cannot be taken end the process with 2, as ``argparse`` does.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="freescale", description="Tools for freescale_pg.")
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        if name == next(iter(given), None):
            module = importlib.import_module(f"freescale_pg.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
            if hasattr(module, "spell_out"):
                given[1:] = module.spell_out(given[1:])
    arguments = parser.parse_args(given)
    try:
        return int(arguments.run(arguments))
    except (OSError, ValueError) as error:
        print(f"freescale: {error}", file=sys.stderr)
        return 1
