"""Results for people: the table on the screen, and docs/gpu-results.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpu_check.finding import Expectation, Fact
from gpu_check.machine import Machine
from gpu_check.row import Row
from gpu_check.runner import Outcome, Result

NOT_YET_RUN = "**Not yet run on hardware.** No statement below has been seen on a GPU."

_INTRODUCTION = """# Results on GPUs

What the project knows of GPUs was read in public sources and tried on a stand-in driver. Below are
the questions that only a machine with GPUs can answer, and what each decides.

    make gpu-check                              # all that the machine can answer
    make gpu-check ARGS="--rows driver.lock"    # those with one of these words in their names
    make gpu-check ARGS=--write-docs            # and writes the answers to this file
    make gpu-check REHEARSE=1                   # without a GPU: that the suite itself works

It prints a table, and writes every finding to `build/gpu-check.jsonl`, row by row. A row that hangs
is ended at its time limit and says so. What a row *expects* is a rule that the design relies on;
numbers are for comparing within one run, and none is compared with a limit. A rehearsal says
nothing about GPUs, and never writes this file.

Rows on torch run on as many ranks as there are GPUs, up to 8. Where there is only one, 2 or 3 ranks
share it. NCCL refuses that, so rows that are about NCCL need 2 GPUs.
"""


def line_of(result: Result) -> str:
    """One line of the table on the screen."""
    return (
        f"{result.outcome.value:9} {result.seconds:6.1f} s  {result.row.name:28} {result.row.asks}"
    )


def details_of(result: Result) -> list[str]:
    """What is below that line."""
    lines = [str(finding) for finding in result.findings]
    if result.remark:
        lines += result.remark.splitlines()
    return [f"          {line}" for line in lines]


def summary(results: Sequence[Result], machine: Machine) -> str:
    """The last lines on the screen."""
    counts = ", ".join(
        f"{number} {outcome.value}"
        for outcome in Outcome
        if (number := sum(result.outcome is outcome for result in results))
    )
    if machine.rehearsal:
        return f"{counts}\nThis was a rehearsal on a stand-in. It says nothing about GPUs."
    return counts


def document(rows: Iterable[Row], results: Sequence[Result], machine: Machine | None) -> str:
    """docs/gpu-results.md: all rows, with the results that there are.

    Args:
        rows: All rows.
        results: Of those that were run; none: nothing was.
        machine: Where they ran; None: nowhere.

    Raises:
        ValueError: The results are those of a rehearsal.
    """
    if machine is not None and machine.rehearsal:
        raise ValueError("a rehearsal has no results on GPUs")
    by_name = {result.row.name: result for result in results}
    parts = [_INTRODUCTION]
    if machine is None:
        parts.append(NOT_YET_RUN + "\n")
    else:
        parts.append("\n".join(_machine_lines(machine)) + "\n")
    parts.append("| row | asks | decides | needs | outcome |\n|---|---|---|---|---|")
    for row in rows:
        outcome = by_name[row.name].outcome.value if row.name in by_name else "not yet run"
        needs = f"{row.devices} GPU{'s' if row.devices > 1 else ''}"
        needs += ", torch" if row.on_torch else ""
        parts.append(f"| `{row.name}` | {row.asks} | {row.decides} | {needs} | {outcome} |")
    for result in results:
        if result.findings or result.remark:
            parts += ["", *_section(result)]
    return "\n".join(parts) + "\n"


def _machine_lines(machine: Machine) -> list[str]:
    return [*(f"- {fact}" for fact in machine.facts), f"- torch: {machine.torch}"]


def _section(result: Result) -> list[str]:
    lines = [f"## {result.row.name}: {result.outcome.value}", ""]
    table = [finding for finding in result.findings if isinstance(finding, Fact)]
    for finding in result.findings:
        if not isinstance(finding, Fact):
            mark = "" if not isinstance(finding, Expectation) or finding.holds else "**"
            lines.append(f"- {mark}{finding}{mark}")
    if table:
        lines += ["", "| fact | value |", "|---|---|"]
        lines += [f"| {fact.name} | {fact.value_text} |" for fact in table]
    if result.remark:
        lines += ["", "```", *result.remark.splitlines(), "```"]
    return lines
