"""What one run of a suite depends on, and what it says about each test."""

from dataclasses import dataclass

SUITES = ("distributed", "continuous", "dtensor")
DEBUG_MODES = ("plain", "detail")

# Stands in the log before the name of each test.
TEST_MARK = "=== "


@dataclass(frozen=True)
class Configuration:
    """One way to run a suite.

    Attributes:
        suite: One of ``SUITES``.
        backend: Name of the default group's backend.
        ranks: Of the default group.
        debug: "plain", or "detail" for ``TORCH_DISTRIBUTED_DEBUG=DETAIL``.
    """

    suite: str
    backend: str
    ranks: int
    debug: str

    def __str__(self) -> str:
        return f"{self.suite} on {self.backend}, {self.ranks} ranks, {self.debug}"


@dataclass(frozen=True)
class Outcome:
    """How one test ended.

    Attributes:
        test: "Class.method".
        status: "passed", "failed" or "skipped".
        detail: The traceback of a failure, the reason of a skip.
        seconds: From its start to its end.
        output: Of a failed test and its ranks.
    """

    test: str
    status: str
    detail: str
    seconds: float
    output: str = ""
