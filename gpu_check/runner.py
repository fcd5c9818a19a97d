"""Running rows: each in a process group of its own, which ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpu_check.finding import Expectation, Finding, Unavailable, parse, to_json
from gpu_check.machine import Machine
from gpu_check.row import SOURCES, Row

# Of a program that failed: what it said last.
_LAST_CHARACTERS = 2000


class Outcome(Enum):
    """How a row ended."""

    HOLDS = "holds"  # all that was expected
    ANSWERED = "answered"  # facts, none of which was expected
    BROKEN = "BROKEN"  # something that was expected is not so
    HUNG = "HUNG"  # over its time limit
    FAILED = "FAILED"  # the program could not ask
    NOT_RUN = "not run"

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it."""
        return self in (Outcome.BROKEN, Outcome.HUNG, Outcome.FAILED)


@dataclass(frozen=True)
class Result:
    """What a row has found, also before it hung or failed."""

    row: Row
    outcome: Outcome
    findings: list[Finding]
    seconds: float
    remark: str = ""

    def to_json(self) -> dict[str, Any]:
        """The result as an object of a line of JSON."""
        return {
            "row": self.row.name,
            "asks": self.row.asks,
            "decides": self.row.decides,
            "outcome": self.outcome.value,
            "seconds": round(self.seconds, 3),
            "remark": self.remark,
            "findings": [to_json(finding) for finding in self.findings],
        }


def run_row(row: Row, machine: Machine) -> Result:
    """Asks a row's question; does not raise for anything that its program does."""
    if missing := row.missing(machine):
        return Result(row, Outcome.NOT_RUN, [], 0.0, missing)
    begin = time.monotonic()
    process = subprocess.Popen(
        row.command(machine),
        cwd=SOURCES,
        env={**machine.environment(), **row.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    hung = False
    try:
        output, errors = process.communicate(timeout=row.limit)
    except subprocess.TimeoutExpired:
        hung = True
        _end(process)
        output, errors = process.communicate()
    except BaseException:
        if process.returncode is None:
            _end(process)
        raise
    status = None if hung else process.returncode
    return _judge(row, status, output, errors, time.monotonic() - begin)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends it and what it has started. It was not waited for, so its number is still its own."""
    os.killpg(process.pid, signal.SIGKILL)


def _judge(row: Row, status: int | None, output: str, errors: str, seconds: float) -> Result:
    """Status None: it hung."""
    findings: list[Finding] = []
    remark = ""
    for line in output.splitlines():
        try:
            finding = parse(line)
        except ValueError as error:
            # Also the last line of a program that was killed while it wrote.
            remark = str(error)
            continue
        if finding is not None:
            findings.append(finding)
    if status is None:
        return Result(row, Outcome.HUNG, findings, seconds, f"ended after {row.limit:g} s")
    if status != 0:
        said = errors.strip()[-_LAST_CHARACTERS:]
        return Result(row, Outcome.FAILED, findings, seconds, f"status {status}: {said}")
    if remark or not findings:
        return Result(row, Outcome.FAILED, findings, seconds, remark or "it has found nothing")
    return Result(row, outcome_of(findings), findings, seconds)


def outcome_of(findings: list[Finding]) -> Outcome:
    """What the findings of a program that came to its end amount to."""
    expectations = [finding for finding in findings if isinstance(finding, Expectation)]
    if any(not expectation.holds for expectation in expectations):
        return Outcome.BROKEN
    if expectations:
        return Outcome.HOLDS
    if all(isinstance(finding, Unavailable) for finding in findings):
        return Outcome.NOT_RUN
    return Outcome.ANSWERED
