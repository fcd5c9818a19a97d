"""Fixtures of the tests with CUDA tensors on the stand-in driver, see README.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ranks import Ranks, start_fork_server

REASON = f"torch {torch.__version__} has no CUDA"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stand-ins",
        type=Path,
        default=None,
        help="folder of the built tests/fakes; make test-torch-cuda gives it",
    )
    parser.addoption(
        "--backend", default="freescale", help="of groups; gloo shows whether the tests are right"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Also skips what needs no fixture of this file."""
    if torch.version.cuda is None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(scope="session")
def run_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ranks]:
    """Runs a body on processes with a device each, see :class:`ranks.Ranks`."""
    folder = request.config.getoption("--stand-ins")
    if folder is None:
        pytest.fail("no --stand-ins: the tests run by make test-torch-cuda", pytrace=False)
    start_fork_server(folder.resolve())
    yield Ranks(request.config.getoption("--backend"), tmp_path_factory.mktemp("ranks"))


@pytest.fixture(params=["ahead", "proxy"])
def submission(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of ranks for each way of submitting copies that there is."""
    return {"FREESCALE_CUDA_SUBMISSION": request.param}
