"""The emulated hosts of ``tests/multihost``, for benchmarks."""

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path += [str(_TESTS / "multihost"), str(_TESTS / "python")]

from launcher import Ranks  # noqa: E402
from namespaces import missing  # noqa: E402
from network import Network  # noqa: E402

__all__ = ["Network", "Ranks", "missing"]
