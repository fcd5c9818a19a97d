"""The command of ``make gpu-check``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_check.machine import NoMachineError, look_at_machine
from gpu_check.report import details_of, document, line_of, summary
from gpu_check.row import SOURCES, Row
from gpu_check.rows import ROWS
from gpu_check.runner import Result, run_row

_DOCUMENT = SOURCES / "docs" / "gpu-results.md"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gpu_check", description=__doc__)
    parser.add_argument("--probes", type=Path, help="folder of the probes' executables")
    parser.add_argument(
        "--rehearse", action="store_true", help="on the stand-in driver and with CPU tensors"
    )
    parser.add_argument(
        "--rows", nargs="+", default=[""], help="only those with one of these in their names"
    )
    parser.add_argument(
        "--json", type=Path, default=SOURCES / "build" / "gpu-check.jsonl", help="where findings go"
    )
    parser.add_argument(
        "--write-docs", action="store_true", help="write the results to docs/gpu-results.md"
    )
    parser.add_argument(
        "--write-docs-not-run", action="store_true", help="write that file without results"
    )
    parser.add_argument("--list", action="store_true", help="list the rows, and run none")
    options = parser.parse_args(arguments)
    if options.rehearse and options.write_docs:
        parser.error("a rehearsal has no results to write")
    if options.probes is None and not (options.list or options.write_docs_not_run):
        parser.error("--probes is needed to run rows")
    return options


def _chosen(words: Sequence[str]) -> list[Row]:
    return [row for row in ROWS if any(word in row.name for word in words)]


def _run(rows: Sequence[Row], options: argparse.Namespace) -> int:
    with_torch = any(row.on_torch for row in rows)
    machine = look_at_machine(options.probes.resolve(), options.rehearse, with_torch)
    for fact in machine.facts:
        print(fact)
    print(f"torch: {machine.torch}", flush=True)
    results: list[Result] = []
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with options.json.open("w") as lines:
        head = {"rehearsal": machine.rehearsal, "torch": machine.torch}
        lines.write(
            json.dumps({**head, **{fact.name: fact.value for fact in machine.facts}}) + "\n"
        )
        for row in rows:
            result = run_row(row, machine)
            results.append(result)
            print("\n".join([line_of(result), *details_of(result)]), flush=True)
            # Row by row, as a machine may not survive the next one.
            lines.write(json.dumps(result.to_json()) + "\n")
            lines.flush()
    print(summary(results, machine))
    if options.write_docs:
        _DOCUMENT.write_text(document(ROWS, results, machine))
    return int(any(result.outcome.is_bad for result in results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs rows; returns the exit status: 1 if one of them is broken, hung or failed."""
    options = _parse(arguments)
    rows = _chosen(options.rows)
    if not rows:
        print(f"no row has a name with one of {options.rows}", file=sys.stderr)
        return 2
    if options.write_docs_not_run:
        _DOCUMENT.write_text(document(ROWS, [], None))
        return 0
    if options.list:
        for row in rows:
            print(f"{row.name:28} {row.asks}\n{'':28} decides: {row.decides}")
        return 0
    try:
        return _run(rows, options)
    except NoMachineError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
