"""Fixtures of all Python tests."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from harness.launch import Launcher, start_fork_server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        default="freescale",
        help="backend under test; gloo shows whether the tests themselves are right",
    )
    parser.addoption(
        "--fault-sizes", default="3", help="world sizes of test_faults.py, comma-separated"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "freescale_only: asks for more than the c10d contract, or than gloo offers"
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
def launch(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Runs a body on several ranks, see :class:`harness.launch.Launcher`."""
    start_fork_server()
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
    )
    yield Launcher(backend, store, tmp_path_factory.mktemp("ranks"))
