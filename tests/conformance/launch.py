"""Runs one suite in a process group of its own, which is gone afterwards in every case."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conformance.configuration import TEST_MARK, Configuration, Outcome
from conformance.judgement import SuiteRun

TESTS = Path(__file__).resolve().parents[1]
# Seconds. Each test has a limit of its own, see cell.py; this is for what they add up to.
SUITE_LIMIT = 1500
# Seconds for killed processes to go. Those that nobody reaps would never.
END_LIMIT = 10
LOG_TAIL = 4000  # characters

# What would change what the suites do: of earlier runs, of launchers, of CI.
FOREIGN = ("TORCH", "PYTORCH_", "FREESCALE_", "GLOO_", "TEST_", "MASTER_", "DISTRIBUTED_TESTS_")
FOREIGN_NAMES = ("CI", "SANDCASTLE", "RANK", "LOCAL_RANK", "WORLD_SIZE", "BACKEND", "INIT_METHOD")


def run_suite(configuration: Configuration, folder: Path, only: str) -> SuiteRun:
    """Runs a suite and returns how its tests ended.

    Args:
        configuration: What to run.
        folder: An empty one, for everything that is written.
        only: Regular expression that the names of tests must contain.
    """
    start = time.monotonic()
    records, log = folder / "records.jsonl", folder / "log"
    command = [sys.executable, "-m", "conformance.cell", f"--suite={configuration.suite}"]
    command += [f"--backend={configuration.backend}", f"--ranks={configuration.ranks}"]
    command += [f"--records={records}", f"--only={only}"]
    ended = run_group(command, environment(configuration, folder), folder, log, SUITE_LIMIT)
    outcomes, complete, last = read(records)
    text = log.read_text(errors="replace")
    cut_short = ""
    if not complete:
        cut_short = f"{ended} in {last or 'the set-up'}; the log ends with\n{text[-LOG_TAIL:]}"
    for name, outcome in outcomes.items():
        if outcome.status == "failed":
            outcomes[name] = replace(outcome, output=output_of(name, text)[-LOG_TAIL:])
    return SuiteRun(configuration, outcomes, time.monotonic() - start, cut_short)


def environment(configuration: Configuration, folder: Path) -> dict[str, str]:
    """Returns this process's environment without what is foreign, for one configuration."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(FOREIGN) and name not in FOREIGN_NAMES
    }
    variables |= {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), variables.get("PYTHONPATH")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "CUDA_VISIBLE_DEVICES": "",  # Else torch would want one device for each rank.
        "OMP_NUM_THREADS": "1",  # Ranks outnumber cores.
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if configuration.debug == "detail":
        variables["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    return variables


def run_group(
    command: Sequence[str], variables: dict[str, str], folder: Path, log: Path, limit: float
) -> str:
    """Runs a command to its end or the limit, ends all that it started, and says how it ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        in_time = wait_unreaped(process.pid, limit)
    finally:
        end_group(process)
    return f"ended with {process.returncode}" if in_time else f"still ran after {limit:.0f} s"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills the group that a process leads, and returns when it is gone."""
    # Unreaped, its number is still its own, so that this reaches its group and no other.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + END_LIMIT
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def wait_unreaped(pid: int, limit: float) -> bool:
    """Waits until a child has ended, and leaves it to be reaped. Returns whether it has."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], limit)[0])
    finally:
        os.close(descriptor)


def output_of(test: str, log: str) -> str:
    """Returns what stands in a log between the start of a test and that of the next one."""
    return log.partition(f"{TEST_MARK}{test}\n")[2].partition(TEST_MARK)[0]


def read(records: Path) -> tuple[dict[str, Outcome], bool, str]:
    """Returns the outcomes in a file of records, whether it is complete, and the last test."""
    outcomes: dict[str, Outcome] = {}
    last = ""
    lines = records.read_text().splitlines() if records.exists() else []
    for line in lines:
        fields = json.loads(line)
        event = fields.pop("event")
        if event == "end":
            return outcomes, True, last
        last = fields["test"]
        if event == "outcome":
            outcomes[last] = Outcome(**fields)
    return outcomes, False, last
