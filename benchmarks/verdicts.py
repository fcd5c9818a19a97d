"""Holds what ``freescale bench`` has found against the aims in ``targets.py``.

freescale bench --json out.json
python benchmarks/verdicts.py out.json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from freescale_pg.bench.cell_report import report
from freescale_pg.bench.mode import Record, read_json
from freescale_pg.bench.results import CANDIDATE, CellResult
from freescale_pg.bench.table import markdown
from targets import (
    BASELINE_RANKS,
    BULK_LOSS_AT_MOST,
    EXPOSED_LESS_BY,
    URGENT_SLOWDOWN_AT_MOST,
    judge,
)


def of_collectives(records: Sequence[Record]) -> str:
    """The table of the run with the aims beside each cell, and how many are met.

    Cells at two ranks are the baseline of the cost per byte at the others.
    """
    results = [CellResult.from_record(record) for record in records]
    baseline = [result for result in results if result.ranks == BASELINE_RANKS]

    def judged(result: CellResult) -> str:
        return "; ".join(str(verdict) for verdict in judge(result, baseline)) or "–"

    verdicts = [verdict for result in results for verdict in judge(result, baseline)]
    met = sum(verdict.met for verdict in verdicts)
    summary = f"{met} of {len(verdicts)} judged here are met"
    if not verdicts:
        summary = "none of them can be judged by this run"
    return f"{report(results, ('targets', judged))}\n\ntargets: {summary}"


def of_priority(records: Sequence[Record]) -> str:
    """What freescale's urgent exchange and its bulk one reach."""
    rows = []
    for record in records:
        if record["backend"] != CANDIDATE:
            continue
        slowdown, loss = record["ratio"], record["bulk_loss"]
        rows += [
            ["urgent, loaded over idle", _at_most(slowdown, URGENT_SLOWDOWN_AT_MOST)],
            ["bulk loss", _at_most(loss, BULK_LOSS_AT_MOST)],
        ]
    return markdown(["priority", "target"], rows)


def of_overlap(records: Sequence[Record]) -> str:
    """How much less of the exchange is exposed when it is overlapped by priorities."""
    rows = []
    for record in records:
        bound = EXPOSED_LESS_BY.get(record["shared"])
        less = record["less_by"]
        if record["schedule"] == "prioritised" and bound is not None and less is not None:
            word = "met" if less >= bound else "MISSED"
            rows.append([f"{100 * record['shared']:g}", f"{word} {less:.3g} ≥ {bound:g}"])
    return markdown(["shared %", "exposed less by"], rows)


def _at_most(value: float | None, bound: float) -> str:
    if value is None:
        return "not measured"
    return f"{'met' if value <= bound else 'MISSED'} {value:.3g} ≤ {bound:g}"


VERDICTS = {"collectives": of_collectives, "priority": of_priority, "overlap": of_overlap}


def main() -> None:
    """Reads the file and prints the verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("json", type=Path, help="written by freescale bench --json")
    try:
        mode, records = read_json(parser.parse_args().json)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    print(VERDICTS[mode](records))


if __name__ == "__main__":
    main()
