"""Fixtures of the tests on emulated hosts, see README.md."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.launch import start_fork_server
from launcher import Ranks
from namespaces import missing
from network import Network
from relay import DEVICE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        default=None,
        help="of the groups: gloo or freescale; without it, tests that ask run on both",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--backend")
        metafunc.parametrize("backend", [chosen] if chosen else ["gloo", "freescale"])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "freescale_only: asks for more than gloo offers")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        elif item.get_closest_marker("freescale_only"):
            backend = item.callspec.params["backend"]  # type: ignore[attr-defined]
            if backend != "freescale":
                item.add_marker(pytest.mark.skip(reason=f"not for {backend}"))


@pytest.fixture(scope="session")
def make_network(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Network]:
    """Makes a :class:`network.Network` whose hosts see the files of the tests."""

    def make(*arguments: Any, **options: Any) -> Network:
        if options.get("wire") is not None and not DEVICE.exists():
            pytest.skip(f"no {DEVICE}")
        return Network(*arguments, folders=[tmp_path_factory.getbasetemp()], **options)

    return make


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Runs a body on ranks of a network, see :class:`launcher.Ranks`."""
    start_fork_server()
    yield Ranks("freescale", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def shared_network(make_network: Callable[..., Network]) -> Iterator[Callable[[int], Network]]:
    """Networks for tests that leave them as they are, by their number of hosts."""
    made: dict[int, Network] = {}
    with contextlib.ExitStack() as stack:

        def get(hosts: int) -> Network:
            if hosts not in made:
                made[hosts] = stack.enter_context(make_network(hosts))
            return made[hosts]

        yield get
