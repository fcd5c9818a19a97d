"""``freescale doctor``: what works on this machine, what does not, and the cure."""

import argparse
import dataclasses
import json
import textwrap

from freescale_pg.diagnosis.checks import CHECKS, Check


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command takes."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Prints the answers; 1 if something failed."""
    answers: list[Check] = []
    for check in CHECKS:
        answer = check()
        if answer is None:
            continue
        answers.append(answer)
        if not arguments.json:
            print(_text(answer), flush=True)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(answer) for answer in answers]))
    return int(any(answer.state == "FAILED" for answer in answers))


def _text(answer: Check) -> str:
    lines = [f"{answer.state:<6} {answer.name}: {answer.found}", f"       {answer.meaning}"]
    if answer.cure:
        lines += textwrap.wrap(
            f"cure: {answer.cure}", 100, initial_indent=" " * 7, subsequent_indent=" " * 13
        )
    return "\n".join(lines)
