"""The judgement on torch's own suites, on made-up outcomes; the suites run in make conformance."""

from pathlib import Path

import pytest

from conformance.__main__ import main
from conformance.configuration import SUITES, Configuration, Outcome
from conformance.expected_failures import EXPECTED_FAILURES, FLOORS, ExpectedFailure
from conformance.judgement import SuiteRun, compare, judge
from conformance.launch import run_group

HERE = Configuration("distributed", "freescale", 2, "plain")
THERE = Configuration("distributed", "gloo", 2, "plain")
LISTED = [ExpectedFailure("distributed", "Suite.listed", says="as known", reason="known")]


def run_of(configuration: Configuration, cut_short: str = "", **statuses: str) -> SuiteRun:
    """Makes a run from statuses by test; what stands after a colon is the detail."""
    outcomes = {}
    for name, text in statuses.items():
        status, _, detail = text.partition(":")
        outcomes[f"Suite.{name}"] = Outcome(f"Suite.{name}", status, detail, 0.1)
    return SuiteRun(configuration, outcomes, 1.0, cut_short)


def test_run_as_expected_has_no_problems() -> None:
    run = run_of(HERE, good="passed", left="skipped:no GPU", listed="failed:as known")
    assert judge(run, LISTED, floor=1) == []


@pytest.mark.parametrize(
    ("statuses", "problem"),
    [
        (
            {"good": "passed", "bad": "failed:boom", "listed": "failed:as known"},
            "Suite.bad failed:\nboom",
        ),
        ({"good": "passed", "listed": "failed:boom"}, "failed, but not with 'as known':\nboom"),
        ({"good": "passed", "listed": "passed"}, "Suite.listed passed, but is listed"),
        ({"good": "passed", "listed": "skipped:why"}, "Suite.listed skipped, but is listed"),
        ({"good": "passed"}, "Suite.listed is listed, but did not run"),
        ({"listed": "failed:as known"}, "only 0 tests passed, which is less than 1"),
        (
            {"good": "passed", "listed": "failed:as known", "cut_short": "still ran after 9 s"},
            "cut short: still ran after 9 s",
        ),
    ],
)
def test_problem_is_found(statuses: dict[str, str], problem: str) -> None:
    problems = judge(run_of(HERE, **statuses), LISTED, floor=1)
    assert len(problems) == 1
    assert problem in problems[0]


def test_selection_of_tests_is_not_counted() -> None:
    assert judge(run_of(HERE), LISTED, floor=1, partial=True) == []


def test_what_the_reference_passes_must_run() -> None:
    run = run_of(HERE, good="passed", left="skipped:a gate", listed="failed:as known", bad="failed")
    reference = run_of(
        THERE,
        good="failed",
        left="passed",
        listed="passed",
        gone="passed",
        more="skipped",
        bad="passed",
    )
    left_out = "passes, but is left out by the backend under test"
    assert compare(run, reference, floor=4) == [
        f"Suite.gone {left_out}: it is not there",
        f"Suite.left {left_out}: a gate",
    ]


def test_reference_that_did_not_really_run_is_a_problem() -> None:
    run = run_of(HERE, good="passed")
    empty = run_of(THERE, cut_short="ended with 1")
    assert compare(run, empty, floor=1) == [
        "cut short: ended with 1",
        "only 0 tests passed, which is less than 1",
    ]


def test_other_torch_is_a_skip_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["conformance", "--short"])
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.99.0")
    assert main() == 0
    assert capsys.readouterr().out.startswith("skipped: the lists are those of torch 2.13, this is")


def test_lists_are_well_formed() -> None:
    assert {suite for suite, _ in FLOORS} == set(SUITES)
    for entry in EXPECTED_FAILURES:
        assert entry.suite in SUITES
        assert entry.says
        assert entry.reason


@pytest.mark.parametrize(
    ("lasts", "limit", "end"),
    [("exit 3", 60, "ended with 3"), ("wait", 1, "still ran after 1 s")],
)
def test_nothing_outlives_a_suite(tmp_path: Path, lasts: str, limit: float, end: str) -> None:
    command = ["bash", "-c", f"sleep 1000 & {lasts}"]
    mark = {"PATH": "/usr/bin:/bin", "MARK": str(tmp_path)}
    assert run_group(command, mark, tmp_path, tmp_path / "log", limit) == end
    assert processes_marked(tmp_path) == []


def processes_marked(mark: Path) -> list[str]:
    """Returns the processes with MARK in their environment; of ended ones, it can't be read."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"MARK={mark}".encode() in variables:
            found.append(process.name)
    return found
