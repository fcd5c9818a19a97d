"""torch's ``DistributedTest``, open to a backend that torch does not know.

torch decides at the definition of each test whether a backend may run it, from the backend's name.
The module is therefore imported under gloo's name, so that whatever gloo may run stays open, and
gets the name of the backend under test after that.
"""

import importlib
import os
import tempfile
import unittest
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from torch.testing._internal import common_distributed

from conformance.ranks import ForkedRanks

MODULE = "torch.testing._internal.distributed.distributed_test"
# Gloo, whose name opens all other gates, may not run these: the all-to-all tests on CPU.
SHUT_TO_GLOO = "Only MPI supports"
# What the tests of a subgroup need: theirs are ranks 1 and 2. torch runs them from 8 ranks on.
SUBGROUP_RANKS = 3
# Seconds. Tests that let a group's timeout run out give it one second, which is little for making
# the group on a busy machine.
LEAST_TIMEOUT = 5
# Seconds for the file barrier around each test. torch's 10 are too few on a busy machine.
BARRIER_LIMIT = 60


def load(backend: str, ranks: int) -> list[type[unittest.TestCase]]:
    """Returns the test classes for a world of ``ranks`` on ``backend``."""
    module = _import_open(backend, ranks)
    return [_define(module)]


def _import_open(backend: str, ranks: int) -> ModuleType:
    rendezvous = Path(tempfile.mkdtemp(prefix="init-")) / "file"
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(ranks), INIT_METHOD=f"file://{rendezvous}")
    if ranks >= SUBGROUP_RANKS:
        common_distributed.skip_if_small_worldsize = lambda test: test
    module = importlib.import_module(MODULE)
    os.environ["BACKEND"] = backend
    vars(module).update(BACKEND=backend, timedelta=_timeout)
    for supported in ("PROFILING_SUPPORTED_BACKENDS", "SEND_RECV_PROFILING_SUPPORTED_BACKENDS"):
        getattr(module, supported).append(backend)
    _open_all_to_all(module.DistributedTest._DistTestBase)
    return module


def _timeout(seconds: float) -> timedelta:
    """Returns what the tests take for a timeout; those below a second are to run out at once."""
    return timedelta(seconds=max(seconds, LEAST_TIMEOUT) if seconds >= 1 else seconds)


def _open_all_to_all(tests: type) -> None:
    for test in vars(tests).values():
        if getattr(test, "__unittest_skip_why__", "").startswith(SHUT_TO_GLOO):
            del test.__unittest_skip__


def _define(module: ModuleType) -> type[unittest.TestCase]:
    """Makes the class that torch leaves to each backend: it says how ranks start."""
    start: Any = module.TestDistBackend
    tests: Any = module.DistributedTest._DistTestBase

    class DistributedTest(ForkedRanks, start, tests):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        def _barrier(self, *args: Any, **kwargs: Any) -> None:
            super()._barrier(*args, **{"timeout": BARRIER_LIMIT, **kwargs})

        def _test_accumulate_gradients_no_sync(self, *args: Any, **kwargs: Any) -> None:
            # Asks the backend's name for the device of the model, and knows three names.
            with mock.patch.object(module, "BACKEND", "gloo"):
                super()._test_accumulate_gradients_no_sync(*args, **kwargs)

    return DistributedTest
