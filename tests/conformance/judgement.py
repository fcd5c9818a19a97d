"""What is wrong with the outcomes of a suite, given what is expected of it."""

from collections.abc import Iterable
from dataclasses import dataclass

from conformance.configuration import Configuration, Outcome
from conformance.expected_failures import ExpectedFailure

DETAIL_TAIL = 6000  # characters


@dataclass(frozen=True)
class SuiteRun:
    """One suite, run in one configuration.

    Attributes:
        configuration: What was run.
        outcomes: By name of the test.
        seconds: For the whole suite.
        cut_short: Why not all tests ran, with the end of the log; empty if they did.
    """

    configuration: Configuration
    outcomes: dict[str, Outcome]
    seconds: float
    cut_short: str = ""

    def names(self, status: str) -> set[str]:
        """Returns the tests that ended so."""
        return {name for name, outcome in self.outcomes.items() if outcome.status == status}


def judge(
    run: SuiteRun, listed: Iterable[ExpectedFailure], floor: int, *, partial: bool = False
) -> list[str]:
    """Returns what is wrong with a run; empty if it is as it should be.

    Args:
        run: Of the backend under test.
        listed: The failures expected in this configuration.
        floor: How many tests must pass.
        partial: Only some tests were asked for: neither count them nor miss listed ones.
    """
    expected = {entry.test: entry for entry in listed}
    problems = [f"cut short: {run.cut_short}"] if run.cut_short else []
    for name, outcome in run.outcomes.items():
        entry = expected.get(name)
        if outcome.status == "failed" and entry is None:
            problems.append(f"{name} failed:\n{text_of(outcome)}")
        elif outcome.status == "failed" and entry is not None and entry.says not in outcome.detail:
            problems.append(f"{name} failed, but not with {entry.says!r}:\n{text_of(outcome)}")
        elif outcome.status != "failed" and entry is not None:
            problems.append(f"{name} {outcome.status}, but is listed as an expected failure")
    if not partial:
        missing = expected.keys() - run.outcomes.keys()
        problems += [f"{name} is listed, but did not run" for name in sorted(missing)]
        passed = len(run.names("passed"))
        if passed < floor:
            problems.append(f"only {passed} tests passed, which is less than {floor}")
    return problems


def text_of(outcome: Outcome) -> str:
    """Returns all that is known of a failure."""
    return f"{outcome.detail[-DETAIL_TAIL:]}\n--- output\n{outcome.output}"


def compare(run: SuiteRun, reference: SuiteRun, floor: int) -> list[str]:
    """Returns the tests that the reference passes and the run leaves out.

    Those that fail are for :func:`judge`, which knows the ones that may.

    Args:
        run: Of the backend under test.
        reference: The same of another backend.
        floor: How many tests the reference must pass for the comparison to mean anything.
    """
    problems = [f"cut short: {reference.cut_short}"] if reference.cut_short else []
    passed = reference.names("passed")
    if len(passed) < floor:
        problems.append(f"only {len(passed)} tests passed, which is less than {floor}")
    for name in sorted(passed - run.names("passed") - run.names("failed")):
        reason = run.outcomes[name].detail if name in run.outcomes else "it is not there"
        problems.append(f"{name} passes, but is left out by the backend under test: {reason}")
    return problems
