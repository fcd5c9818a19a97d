"""One suite in one configuration, in a process of its own: torch reads both when it is imported."""

import argparse
import ctypes
import faulthandler
import importlib
import json
import os
import re
import signal
import time
import traceback
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from conformance.configuration import SUITES, TEST_MARK

# Seconds that torch gives the ranks of one test, after which it logs their stacks and ends them.
TEST_LIMIT = 120
# Seconds more after which this process ends itself.
CELL_GRACE = 30

PR_SET_PDEATHSIG = 1

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=SUITES, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--records", type=Path, required=True, help="file to write outcomes to")
    parser.add_argument("--only", default="", help="regular expression that test names contain")
    options = parser.parse_args()
    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    limit_each_test()
    module = importlib.import_module(f"conformance.{options.suite}_suite")
    classes = module.load(options.backend, options.ranks)
    with options.records.open("w", buffering=1) as records:
        recorder = Recorder(records)
        collect(classes, options.only).run(recorder)
        recorder.write(event="end")


def die_with_parent() -> None:
    """Has the kernel end this process when its parent is gone, however that ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_each_test() -> None:
    """Has torch give each test the same time, and not more to some."""
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(TEST_LIMIT)
    from torch.testing._internal import common_distributed

    common_distributed.TIMEOUT_OVERRIDE.clear()


def collect(classes: list[type[unittest.TestCase]], only: str) -> unittest.TestSuite:
    """Returns the tests of the classes whose "Class.method" matches ``only``, by class."""
    pattern = re.compile(only)
    loader = unittest.TestLoader()
    return unittest.TestSuite(
        unittest.TestSuite(
            case(method)
            for method in loader.getTestCaseNames(case)
            if pattern.search(f"{case.__name__}.{method}")
        )
        for case in classes
    )


class Recorder(unittest.TestResult):
    """Writes the outcome of each test as one line of JSON as soon as it is known."""

    def __init__(self, records: TextIO) -> None:
        super().__init__()
        self._records = records
        self._started = time.monotonic()

    def write(self, **fields: Any) -> None:
        self._records.write(json.dumps(fields) + "\n")

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        # Leaves the stacks of this process in the log.
        faulthandler.dump_traceback_later(TEST_LIMIT + CELL_GRACE, exit=True)
        self._started = time.monotonic()
        print(f"{TEST_MARK}{name_of(test)}", flush=True)
        self.write(event="start", test=name_of(test))

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        # Again, for what comes between tests, such as the end of a class's ranks.
        faulthandler.dump_traceback_later(TEST_LIMIT + CELL_GRACE, exit=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: ExceptionInfo) -> None:
        self._add(test, "failed", "".join(traceback.format_exception(*err)))

    addError = addFailure

    def _add(self, test: unittest.TestCase, status: str, detail: str) -> None:
        seconds = time.monotonic() - self._started
        self.write(
            event="outcome", test=name_of(test), status=status, detail=detail, seconds=seconds
        )


def name_of(test: unittest.TestCase) -> str:
    """Returns "Class.method"; what is not a test, such as a class's set-up, names itself."""
    return ".".join(test.id().split(".")[-2:]) if isinstance(test, unittest.TestCase) else str(test)


if __name__ == "__main__":
    main()
