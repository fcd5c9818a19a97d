"""Fixtures of all Python tests."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from harness.launch import Launcher, start_fork_server

# Seconds from the end of a rank to the error on another one.
WAKE_TIMES = pytest.StashKey[list[float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        default="freescale",
        help="backend under test; gloo shows whether the tests themselves are right",
    )
    parser.addoption(
        "--fault-sizes", default="3", help="world sizes of test_faults_*.py, comma-separated"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[WAKE_TIMES] = []
    config.addinivalue_line(
        "markers", "freescale_only: asks for more than the c10d contract, or than gloo offers"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault_size" in metafunc.fixturenames:
        sizes = [int(word) for word in metafunc.config.getoption("--fault-sizes").split(",")]
        metafunc.parametrize("fault_size", sizes)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With pytest-xdist, tests run in worker processes, whose outputs the main one collects."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["wake_times"] = session.config.stash[WAKE_TIMES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[WAKE_TIMES] += getattr(node, "workeroutput", {}).get("wake_times", [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Not judged, as machines differ; but a promise that should be seen to hold."""
    times = sorted(config.stash[WAKE_TIMES])
    if times:
        terminalreporter.write_line(
            f"from a rank's end to the error on another: median {times[len(times) // 2]:.3f} s, "
            f"longest {times[-1]:.3f} s ({len(times)} ranks)"
        )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    backend = config.getoption("--backend")
    if backend == "freescale":
        return
    skip = pytest.mark.skip(reason=f"not for {backend}")
    for item in items:
        if item.get_closest_marker("freescale_only"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--backend"))


@pytest.fixture(scope="session")
def wake_times(request: pytest.FixtureRequest) -> list[float]:
    """Where tests leave what they measured, for the summary."""
    return request.config.stash[WAKE_TIMES]


@pytest.fixture(scope="session")
def launch(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Runs a body on several ranks, see :class:`harness.launch.Launcher`."""
    start_fork_server()
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    yield Launcher(backend, store, tmp_path_factory.mktemp("ranks"))
